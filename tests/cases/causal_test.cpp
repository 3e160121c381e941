// Public bug reports: where the causal diagonal lies, and where it is forgotten.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// pytorch/pytorch#108108: is_causal aligns at the top left where bottom right is expected.
TEST(Causal, D13AlignmentIsNamed) {
  const MeanProbe<> wide = bits_probe(2, 5), tall = bits_probe(5, 2);
  expect_means(wide.outputs(causal_bottom_right()), {3.75, 6.2});
  expect_means(tall.outputs(causal_bottom_right()), {0, 0, 0, 1, 1.5});
  expect_means(wide.outputs(causal_top_left()), {1, 1.5});
  expect_means(tall.outputs(causal_top_left()), {1, 1.5, 1.5, 1.5, 1.5});
  // There is no default to be mistaken about.
  EXPECT_THROW(wide.outputs(causal()), ShapeError);
  EXPECT_THROW(tall.outputs(causal()), ShapeError);
}

// microsoft/onnxruntime#29020: kernels of one operator align differently.
TEST(Causal, D14AlignmentIsTheSameOnEveryPath) {
  ThreadPool pool(8);
  for (const Index heads : {1, 24}) {  // few rows and many rows go different ways
    const MeanProbe<> probe = bits_probe(1, 4, heads, 1);
    for (const InstructionSet set :
         {InstructionSet::best, InstructionSet::generic, InstructionSet::sse2, InstructionSet::avx2,
          InstructionSet::avx512, InstructionSet::neon}) {
      for (Executor* const executor :
           {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
        for (const Want want : {Want::output, Want::weights, Want::weights | Want::log_sum_exp}) {
          AttentionOptions options;
          options.instruction_set = set;
          options.executor = executor;
          std::vector<double> rows;
          try {
            rows = probe.outputs(causal_bottom_right(), options, want);
          } catch (const OptionError&) {
            // A set that this CPU does not have; these two every CPU has.
            EXPECT_TRUE(set != InstructionSet::best && set != InstructionSet::generic);
            continue;
          }
          expect_means(rows, std::vector<double>(rows.size(), 3.75));
          expect_means(probe.outputs(causal_top_left(), options, want),
                       std::vector<double>(rows.size(), 1));
        }
      }
    }
  }
}

// pytorch/pytorch#144858, the part without a cache: a single query at the end sees all keys.
TEST(Causal, D15DecodedTokenSeesItsPast) {
  for (const Index token : {5, 6, 7}) {
    const MeanProbe<> probe = bits_probe(1, token + 1);
    const double expected = token == 5 ? 10.5 : token == 6 ? 127.0 / 7 : 31.875;
    expect_means(probe.outputs(causal_bottom_right()), {expected});
    expect_means(probe.outputs(causal_from(token)), {expected});
    AttentionOptions options;
    options.query_offset = PerBatch(token);
    expect_means(probe.outputs(causal(), options), {expected});
  }
}

// facebookresearch/xformers#103: causal is ignored where no other mask is given.
TEST(Causal, D16HoldsAloneAndWithWhatRestrictsNothing) {
  const MeanProbe<> probe = bits_probe(6, 6);
  const std::vector<double> expected = {1, 1.5, 7.0 / 3, 3.75, 6.2, 10.5};
  TestTensor<bool> all({1, 1, 6, 6});
  all.fill_value(true);
  TestTensor<float> zero({1, 1, 6, 6});
  zero.fill_value(0);
  const std::vector<double> flat = {0.0};
  for (const AnyMask& mask :
       {AnyMask(causal()), AnyMask(causal() & keep_where(all.view())),
        AnyMask(keep_where(all.view()) & causal()), AnyMask(causal() & add_bias(zero.view())),
        AnyMask(causal() & sliding_window(kUnlimited, kUnlimited)), AnyMask(causal() & alibi(flat)),
        AnyMask(causal() & no_mask()), AnyMask(causal() & key_lengths(6))}) {
    expect_means(probe.outputs(mask), expected);
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// Public bug reports: bits that change from run to run, or with the number of threads.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "attn/attn.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

template <class T>
void expect_one_result(const Sizes& sizes, const AnyMask& mask) {
  using A = AccumulationType<T>;
  const Inputs<T> in(sizes);
  const Want all = Want::weights | Want::log_sum_exp;
  const AttentionResult<T, A> expected =
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask, {}, all);
  for (const int threads : {1, 2, 3, 6, 8, 16}) {
    ThreadPool pool(threads);
    AttentionOptions options;
    options.executor = &pool;
    for (int run = 0; run < 20; ++run) {
      const AttentionResult<T, A> result =
          scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask, options, all);
      ASSERT_TRUE(same_bits(result.output.view(), expected.output.view()))
          << threads << " threads, run " << run;
      ASSERT_TRUE(same_bits(result.weights.view(), expected.weights.view()));
      ASSERT_TRUE(same_bits(result.log_sum_exp.view(), expected.log_sum_exp.view()));
    }
  }
}

// pytorch/pytorch#88718: another number of threads gives other bits.
TEST(Determinism, D45ThreadsDoNotChangeBits) {
  const Sizes sizes{2, 3, 3, 3, 7, 444, 56, 56};
  expect_one_result<float>(sizes, AnyMask());
  expect_one_result<Eigen::bfloat16>(sizes, AnyMask(causal_bottom_right()));
}

TEST(Determinism, D45ThreadsDoNotChangeBitsOfDecode) {
  // Long enough for the keys to be split among threads.
  const Sizes sizes{1, 4, 1, 1, 1, 9000, 4, 4};
  expect_one_result<float>(sizes, AnyMask());
  expect_one_result<Eigen::bfloat16>(sizes, AnyMask(sliding_window(8000, 0)));
}

// microsoft/onnxruntime#26674: a cache that is filled in part gives another result each time. (With
// a cache of the library it is a test of the cache.)
TEST(Determinism, D46MemoryBehindTheKeysDoesNotCount) {
  const Sizes sizes{2, 4, 2, 2, 4, 128, 16, 16};
  const AnyMask mask = key_lengths(4) & causal_from(0);
  const auto is_seen = [](Index, Index, Index i, Index j) { return j < 4 && j <= i; };
  Inputs<float> in(sizes);
  expect_attention<float>(in, mask, keeps(is_seen));
  const auto expected = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask);
  for (std::uint64_t run = 0; run < 50; ++run) {
    for_each_index(sizes.k(), [&](Index b, Index h, Index j, Index d) {
      if (j < 4) return;
      const std::uint64_t at = linear_index(sizes.k(), b, h, j, d);
      const float garbage = run % 3 == 0   ? quiet_nan<float>()
                            : run % 3 == 1 ? infinity<float>()
                                           : static_cast<float>(1e30 * uniform(run, at));
      in.k(b, h, j, d) = garbage;
      in.v(b, h, j, d) = garbage;
    });
    const auto result = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask);
    ASSERT_TRUE(same_bits(result.output.view(), expected.output.view())) << "run " << run;
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// Masks that skip what they drop, alone and in unions, have the bits of the same mask as a tensor
// of elements: in every form, over split keys, and on every instruction set.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attention_bits_test/bits_of.hpp"
#include "attn/attention.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::expect_same;
using test::Inputs;
using test::run;
using test::Sizes;
using test::TestTensor;

/// Holds `mask` to its elements.
template <class T, class M>
void expect_bits_of_elements(const Inputs<T>& in, const Sizes& sizes, const M& mask,
                             AttentionOptions options, const std::string& what) {
  const Index offset = sizes.key_length - sizes.query_length;
  options.query_offset = offset;
  TestTensor<bool> allowed(sizes.scores());
  allowed.fill([&](Index b, Index h, Index i, Index j) {
    return mask.allows({b, h, i, j, i + offset});
  });
  expect_same(run(in, mask, options), run(in, AnyMask(keep_where(allowed.view())), options), what);
}

TYPED_TEST(BitsOf, UnionsAreThoseOfTheirElements) {
  const std::vector<InstructionSet> sets = std::is_same_v<TypeParam, float>
                                               ? test::instruction_sets()
                                               : std::vector<InstructionSet>{InstructionSet::best};
  for (const Sizes& sizes : bit_sizes()) {
    const Inputs<TypeParam> in(sizes, 93);
    const Index keys = sizes.key_length;
    std::vector<Index> counts, begins;
    for (Index b = 0; b < sizes.batch; ++b) {
      counts.push_back(3 + b);
      begins.push_back(keys / 3 - b);
    }
    const AnyMask masks[] = {
        first_keys(counts),
        keys_between(begins, kUnlimited),
        keys_between(begins, 2 * keys / 3) & causal(),
        first_keys(counts) | sliding_window(5, 0),
        (first_keys(1) | sliding_window(9, 2) | keys_between(keys / 2, keys / 2 + 2)) & causal(),
        causal() | first_keys(keys / 2),
        keep_if([](ScorePosition at) { return (at.query + at.key) % 7 == 0; }) |
            (sliding_window(20, 0) & keys_between(begins, kUnlimited)),
    };
    for (const InstructionSet set : sets) {
      AttentionOptions options;
      options.instruction_set = set;
      options.dropout = {0.1, 2, 3};
      for (const AnyMask& mask : masks) {
        expect_bits_of_elements(
            in, sizes, mask, options,
            "mask " + std::to_string(&mask - masks) + ", Sq " + std::to_string(sizes.query_length));
      }
    }
  }
}

TYPED_TEST(BitsOf, SegmentsAreThoseOfTheirElements) {
  for (const Sizes& sizes : bit_sizes()) {
    const Inputs<TypeParam> in(sizes, 95);
    TestTensor<std::int32_t> of_queries({sizes.batch, 1, sizes.query_length, 1}),
        of_keys({1, 1, sizes.key_length, 1}), mixed({1, 1, sizes.key_length, 1});
    const Index offset = sizes.key_length - sizes.query_length;
    of_queries.fill([&](Index b, Index, Index i, Index) {
      return static_cast<std::int32_t>((i + offset) / (13 + b) - 1);
    });
    of_keys.fill(
        [](Index, Index, Index j, Index) { return static_cast<std::int32_t>(j / 13 - 1); });
    mixed.fill([](Index, Index, Index j, Index) { return static_cast<std::int32_t>(j % 11); });
    const AnyMask masks[] = {same_segment(of_queries.view(), of_keys.view()),
                             same_segment(of_queries.view(), of_keys.view()) & causal(),
                             causal() | same_segment(of_queries.view(), of_keys.view()),
                             same_segment(of_queries.view(), mixed.view()) | first_keys(2)};
    for (const AnyMask& mask : masks) {
      expect_bits_of_elements(in, sizes, mask, {}, "mask " + std::to_string(&mask - masks));
    }
  }
}

// The masks as they are, not behind the pointers of an AnyMask.
TEST(Bits, OfAUnionWhoseTypeIsKnown) {
  const Sizes sizes{1, 4, 2, 2, 70, 300, 9, 6};
  const Inputs<float> in(sizes, 94);
  expect_bits_of_elements(in, sizes, first_keys(4) | sliding_window(30, 0), {}, "sinks and window");
  expect_bits_of_elements(in, sizes, (causal() | first_keys(100)) & key_lengths(290), {}, "prefix");
  const auto even = keep_if([](ScorePosition at) { return at.key % 2 == 0; });
  expect_bits_of_elements(in, sizes, (even & causal()) | sliding_window(3, 3), {}, "even keys");
}

}  // namespace
}  // namespace attn

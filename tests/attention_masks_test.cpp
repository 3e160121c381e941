// Every mask alone and in pairs, held to attention by the book with the mask written as a formula.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "support/element_types.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using test::expect_attention;
using test::Inputs;
using test::Kind;
using test::Layout;
using test::MaskData;
using test::Sizes;
using test::TestTensor;

template <class T>
class EachMaskOf : public ::testing::Test {};
TYPED_TEST_SUITE(EachMaskOf, test::ElementTypes, test::TypeNames);

TYPED_TEST(EachMaskOf, AgreesWithItsFormula) {
  for (const Sizes& sizes : test::mask_sizes()) {
    for (const Index offset : {sizes.key_length - sizes.query_length, Index{2}, Index{-4}}) {
      const MaskData<TypeParam> data(sizes, offset);
      const Inputs<TypeParam> in(sizes, 60, Layout::bshd);
      for (const Kind& kind : test::kinds_of(data, sizes, offset)) {
        SCOPED_TRACE(kind.name + ", offset " + std::to_string(offset));
        SCOPED_TRACE(sizes);
        AttentionOptions options;
        if (!kind.is_top_left) options.query_offset = offset;
        expect_attention<TypeParam>(in, kind.mask, kind.formula, options);
      }
    }
  }
}

TEST(PairsOfMasks, AgreeWithBothFormulas) {
  for (const Sizes& sizes : {Sizes{2, 4, 2, 2, 3, 11, 4, 3}, Sizes{1, 4, 2, 2, 13, 16, 4, 3}}) {
    for (const bool top_left : {false, true}) {
      const Index offset = top_left ? 0 : sizes.key_length - sizes.query_length;
      const MaskData<float> data(sizes, offset);
      const Inputs<float> in(sizes, 61);
      const std::vector<Kind> kinds = test::kinds_of(data, sizes, offset);
      for (const Kind& left : kinds) {
        for (const Kind& right : kinds) {
          // With offset 0 only the pairs with causal_top_left are new.
          if ((left.is_top_left || right.is_top_left) != top_left) continue;
          SCOPED_TRACE(left.name + " & " + right.name);
          AttentionOptions options;
          options.query_offset = offset;
          expect_attention<float>(in, left.mask & right.mask, left.formula & right.formula,
                                  options);
          if (left.mask.modifies() || right.mask.modifies()) continue;
          expect_attention<float>(in, left.mask | right.mask, left.formula | right.formula,
                                  options);
        }
      }
    }
  }
}

TEST(ThreeMasks, AgreeWithAllFormulas) {
  const Sizes sizes{2, 4, 2, 2, 13, 16, 4, 3};
  const Index offset = 3;
  const MaskData<Eigen::half> data(sizes, offset);
  const std::vector<Kind> kinds = test::kinds_of(data, sizes, offset);
  const auto kind = [&](const char* name) {
    for (const Kind& k : kinds) {
      if (k.name == name) return k;
    }
    ADD_FAILURE() << name;
    return kinds[0];
  };
  const Kind a = kind("causal"), b = kind("add_bias"), c = kind("keep_where padding"),
             d = kind("alibi"), e = kind("modify_score");
  AttentionOptions options;
  options.query_offset = offset;
  options.softcap = 1.5;
  const std::vector<double> sinks = {0, 1, -1, 2};
  options.sinks = sinks;
  options.dropout = {0.3, 7, 8};
  const Inputs<Eigen::half> in(sizes, 62);
  expect_attention<Eigen::half>(in, a.mask & b.mask & c.mask, a.formula & b.formula & c.formula,
                                options);
  expect_attention<Eigen::half>(in, d.mask & (e.mask & b.mask), d.formula & e.formula & b.formula,
                                options);
  expect_attention<float>(in, e.mask & d.mask & b.mask & c.mask & a.mask,
                          e.formula & d.formula & b.formula & c.formula & a.formula, options);
}

// The masks as they are, not inside an AnyMask: the same bits.
TEST(StaticMasks, HaveTheBitsOfAnyMask) {
  const Sizes sizes{2, 4, 2, 2, 13, 16, 4, 3};
  const MaskData<float> data(sizes, 3);
  const Inputs<float> in(sizes, 63);
  const auto expect_same = [&](const auto& mask) {
    AttentionOptions options;
    options.query_offset = 3;
    TestTensor<float> a(sizes.out()), b(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), a.view(), mask, options);
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), b.view(), AnyMask(mask),
                                 options);
    EXPECT_TRUE(test::same_bits(a.view(), b.view()));
  };
  expect_same(no_mask());
  expect_same(causal() & sliding_window(3, 3));
  expect_same(key_lengths(data.lengths) & alibi());
  expect_same(keep_where(data.full.view()) & add_bias(data.bias.view()));
  expect_same(drop_if([](ScorePosition at) { return at.key == 3; }) &
              modify_score([](auto score, ScorePosition at) {
                return score + static_cast<decltype(score)>(at.query);
              }));
}

TEST(MasksOfBuffers, AreThoseOfTheirViews) {
  const Sizes sizes{1, 2, 1, 1, 3, 4, 2, 2};
  const Inputs<float> in(sizes, 64);
  Tensor4Buffer<std::uint8_t> keep({1, 1, 1, 4}), drop({1, 1, 1, 4});
  Tensor4Buffer<float> bias({1, 1, 1, 4});
  keep(0, 0, 0, 1) = keep(0, 0, 0, 2) = drop(0, 0, 0, 1) = 1;
  bias(0, 0, 0, 2) = 1;
  TestTensor<float> a(sizes.out()), b(sizes.out());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), a.view(),
                               keep_where(keep) & drop_where(drop) & add_bias(bias));
  scaled_dot_product_attention(
      in.q.view(), in.k.view(), in.v.view(), b.view(),
      keep_where(keep.view()) & drop_where(drop.view()) & add_bias(bias.view()));
  EXPECT_TRUE(test::same_bits(a.view(), b.view()));
}

TEST(EachMask, HoldsWithSplitKeys) {
  for (const Sizes& sizes : {Sizes{2, 2, 1, 1, 2, 8200, 3, 2}, Sizes{1, 2, 1, 1, 9, 4200, 3, 2}}) {
    const Index offset = sizes.key_length - sizes.query_length;
    const MaskData<float> data(sizes, offset);
    const Inputs<float> in(sizes, 64);
    for (const Kind& kind : test::kinds_of(data, sizes, offset)) {
      SCOPED_TRACE(kind.name);
      AttentionOptions options;
      if (!kind.is_top_left) options.query_offset = offset;
      expect_attention<float>(in, kind.mask, kind.formula, options);
    }
  }
}

// ---- What the masks let through, read off the output: with q = 0 and v[j] = 2^j each row's output
// times its number of keys is the set of its keys.

std::vector<double> key_sets(Index queries, Index keys, const AnyMask& mask,
                             AttentionOptions options = {}) {
  Tensor4Buffer<double> q({1, 1, queries, 1}), k({1, 1, keys, 1}), v({1, 1, keys, 1}),
      out({1, 1, queries, 1});
  for (Index j = 0; j < keys; ++j) v(0, 0, j, 0) = std::exp2(static_cast<double>(j));
  scaled_dot_product_attention(q, k, v, out, mask, options);
  return std::vector<double>(out.data(), out.data() + queries);
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // One rounding of each weight, one of each of the sums.
    EXPECT_NEAR(actual[i], expected[i], 1e-15 * expected[i]) << "row " << i;
  }
}

TEST(KeySets, OfCausalMasks) {
  expect_near(key_sets(2, 5, causal_bottom_right()), {15 / 4.0, 31 / 5.0});
  expect_near(key_sets(5, 2, causal_bottom_right()), {0, 0, 0, 1, 1.5});
  expect_near(key_sets(2, 5, causal_top_left()), {1, 1.5});
  expect_near(key_sets(5, 2, causal_top_left()), {1, 1.5, 1.5, 1.5, 1.5});
  expect_near(key_sets(1, 4, causal_bottom_right()), {3.75});
  expect_near(key_sets(1, 4, causal_top_left()), {1});
  const std::vector<double> square = {1, 1.5, 7 / 3.0, 3.75, 6.2, 10.5};
  bool all_true[1] = {true};
  float zero[1] = {0};
  const double no_slope[1] = {0};
  expect_near(key_sets(6, 6, causal()), square);
  expect_near(key_sets(6, 6, causal() & keep_where(Tensor4<bool>(all_true, {1, 1, 1, 1}))), square);
  expect_near(key_sets(6, 6, causal() & add_bias(Tensor4<float>(zero, {1, 1, 1, 1}))), square);
  expect_near(key_sets(6, 6, causal() & sliding_window(kUnlimited, kUnlimited)), square);
  expect_near(key_sets(6, 6, causal() & alibi(no_slope)), square);
  expect_near(key_sets(6, 6, causal_from(0)), square);
}

TEST(KeySets, OfWindows) {
  expect_near(key_sets(6, 6, causal() & sliding_window(2, 0)),
              {1, 1.5, 7 / 3.0, 14 / 3.0, 28 / 3.0, 56 / 3.0});
  expect_near(key_sets(6, 6, sliding_window(2, 0)),
              {1, 1.5, 7 / 3.0, 14 / 3.0, 28 / 3.0, 56 / 3.0});
  expect_near(key_sets(5, 5, sliding_window(1, 0)), {1, 1.5, 3, 6, 12});
  expect_near(key_sets(6, 6, sliding_window(0, 2)),
              {7 / 3.0, 14 / 3.0, 28 / 3.0, 56 / 3.0, 24, 32});
  expect_near(key_sets(4, 4, sliding_window(0, 0)), {1, 2, 4, 8});
}

TEST(KeySets, OfAnyOffset) {
  AttentionOptions options;
  options.query_offset = 3;
  expect_near(key_sets(2, 6, causal(), options), {3.75, 6.2});
  expect_near(key_sets(2, 6, sliding_window(1, 1), options), {28 / 3.0, 56 / 3.0});
  options.query_offset = -1;
  expect_near(key_sets(3, 6, causal(), options), {0, 1, 1.5});
  // Offsets whose sums would overflow.
  options.query_offset = (std::numeric_limits<Index>::max)();
  expect_near(key_sets(2, 3, causal(), options), {7 / 3.0, 7 / 3.0});
  expect_near(key_sets(2, 3, sliding_window(1, 1), options), {0, 0});
  options.query_offset = (std::numeric_limits<Index>::min)();
  expect_near(key_sets(2, 3, causal(), options), {0, 0});
  expect_near(key_sets(2, 3, sliding_window(kUnlimited, kUnlimited), options), {7 / 3.0, 7 / 3.0});
}

}  // namespace
}  // namespace attn

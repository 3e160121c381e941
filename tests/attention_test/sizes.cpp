// scaled_dot_product_attention held to attention by the book: layouts and sizes of every axis.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention_test/distinct.hpp"
#include "attn/attention.hpp"
#include "support/element_types.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::half;
using test::expect_attention;
using test::Formula;
using test::Inputs;
using test::Layout;
using test::Sizes;

template <class T>
class AttentionOf : public ::testing::Test {};
TYPED_TEST_SUITE(AttentionOf, test::ElementTypes, test::TypeNames);

TYPED_TEST(AttentionOf, DistinctSizesInEveryLayout) {
  std::uint64_t seed = 0;
  for (const Layout layout : test::kAllLayouts) {
    const Inputs<TypeParam> in(kDistinct, ++seed, layout);
    expect_attention<TypeParam>(in, no_mask(), Formula{}, {}, layout);
  }
}

// Rows on both sides of each row tile (3 vectors of 2 to 16 lanes) and of the 16 rows below which
// the other form is used; two groups, so that what follows a tile is not the end of memory.
TYPED_TEST(AttentionOf, EveryNumberOfRows) {
  for (const Index rows : {1, 2, 3, 4, 5, 8, 15, 16, 17, 23, 24, 25, 31, 33, 47, 48, 49, 95, 97}) {
    const Sizes sizes{1, 2, 2, 2, rows, 21, 6, 5};
    SCOPED_TRACE(sizes);
    expect_attention<TypeParam>(Inputs<TypeParam>(sizes, 11), no_mask(), Formula{});
  }
}

TYPED_TEST(AttentionOf, EveryNumberOfKeys) {
  for (const Index keys : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 255, 257}) {
    for (const Index queries : {1, 5, 19}) {
      const Sizes sizes{1, 1, 1, 1, queries, keys, 6, 5};
      SCOPED_TRACE(sizes);
      expect_attention<TypeParam>(Inputs<TypeParam>(sizes, 12), no_mask(), Formula{});
    }
  }
}

TYPED_TEST(AttentionOf, EveryDim) {
  for (const Index dim : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 72, 127, 129, 257}) {
    for (const Index queries : {1, 4, 18}) {
      const Sizes key_side{1, 1, 1, 1, queries, 11, dim, 3},
          value_side{1, 1, 1, 1, queries, 11, 3, dim};
      SCOPED_TRACE(key_side);
      expect_attention<TypeParam>(Inputs<TypeParam>(key_side, 13), no_mask(), Formula{});
      expect_attention<TypeParam>(Inputs<TypeParam>(value_side, 14), no_mask(), Formula{});
    }
  }
}

// More rows than a block, wide heads with their smaller key tiles, and keys that are split.
TEST(Attention, ShapesBeyondOneBlock) {
  const Sizes shapes[] = {
      {1, 1, 1, 1, 401, 3, 2, 70},      // rows of two blocks at the widest row tile
      {1, 2, 1, 1, 60, 140, 700, 500},  // key tile 64, small row blocks
      {1, 1, 1, 1, 3, 70, 2100, 3},     // key tile 32
      {1, 1, 1, 1, 17, 70, 3, 2100},    //
      {1, 1, 1, 1, 1, 4097, 3, 2},      // decode: two splits
      {2, 4, 2, 1, 3, 8200, 2, 3},      // three splits
      {1, 4, 1, 1, 10, 4200, 3, 2},     // two splits of rows that are lanes
  };
  for (const Sizes& sizes : shapes) {
    SCOPED_TRACE(sizes);
    expect_attention<float>(Inputs<float>(sizes, 15), no_mask(), Formula{});
  }
  expect_attention<double>(Inputs<double>(shapes[4], 15), no_mask(), Formula{});
}

// As many splits as a short head has room for, and more.
TEST(Attention, ManySplitsOfShortHeads) {
  for (const Index key_dim : {0, 1, 2}) {
    const Sizes sizes{1, 2, 1, 1, 1, 30 * 4096 + 5, key_dim, 1};
    SCOPED_TRACE(sizes);
    expect_attention<float>(Inputs<float>(sizes, 16), no_mask(), Formula{});
  }
}

// Split keys and more than one block of rows. With q = 0 out is the mean of v.
TEST(Attention, SplitsAndBlocksTogether) {
  const Sizes sizes{1, 1, 1, 1, 61, 9000, 1, 1100};
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    const Tensor4Buffer<float> q(sizes.q()), k(sizes.k());
    Tensor4Buffer<float> v(sizes.v()), out(sizes.out()), log_sum_exp(sizes.rows());
    for (Index j = 0; j < sizes.key_length; ++j) {
      std::fill_n(&v(0, 0, j, 0), sizes.value_dim, static_cast<float>(j % 16));
    }
    scaled_dot_product_attention(q, k, v, out, no_mask(), options, {{}, log_sum_exp.view()});
    // 562 times 0 .. 15 and once 0 .. 7: sums below 2^24 are exact in float.
    const float mean = (562 * 120 + 28) / 9000.0f;
    for (const float x : Span<const float>(out.data(), out.size())) {
      ASSERT_NEAR(x, mean, 2 * mean * std::numeric_limits<float>::epsilon());
    }
    for (const float x : Span<const float>(log_sum_exp.data(), log_sum_exp.size())) {
      ASSERT_NEAR(x, std::log(9000.0), 1e-6);
    }
  }
}

// ---- Sizes of zero.

TEST(Empty, NoKeysWriteZeros) {
  for (const Index queries : {3, 20}) {
    const Sizes sizes{2, 4, 2, 2, queries, 0, 3, 5};
    expect_attention<float>(Inputs<float>(sizes), no_mask(), Formula{});
    expect_attention<half>(Inputs<half, float, double>(sizes), causal_top_left(), Formula{});
    const std::vector<double> sinks = {1, -2, 3, -test::infinity<double>()};
    AttentionOptions options;
    options.sinks = sinks;
    expect_attention<float>(Inputs<float>(sizes), no_mask(), Formula{}, options);
  }
}

TEST(Empty, AnyAxisMayBeEmpty) {
  const Sizes shapes[] = {{0, 2, 1, 1, 3, 4, 5, 6}, {2, 0, 1, 1, 3, 4, 5, 6},
                          {2, 0, 0, 0, 3, 4, 5, 6}, {2, 2, 1, 1, 0, 4, 5, 6},
                          {2, 2, 1, 1, 0, 0, 5, 6}, {2, 2, 1, 1, 3, 4, 5, 0},
                          {0, 0, 0, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 20, 7, 5, 0}};
  for (const Sizes& sizes : shapes) {
    SCOPED_TRACE(sizes);
    expect_attention<float>(Inputs<float>(sizes), no_mask(), Formula{});
    expect_attention<float>(Inputs<float>(sizes), causal_bottom_right(),
                            test::keeps([&](Index, Index, Index i, Index j) {
                              return j <= i + sizes.key_length - sizes.query_length;
                            }));
  }
  // Null pointers are legal where there is nothing.
  scaled_dot_product_attention(
      Tensor4<float>(nullptr, {1, 1, 0, 4}), Tensor4<float>(nullptr, {1, 1, 0, 4}),
      Tensor4<float>(nullptr, {1, 1, 0, 4}), Tensor4<float>(nullptr, {1, 1, 0, 4}));
}

TEST(Empty, KeyDimZeroGivesTheMean) {
  for (const Index queries : {2, 17}) {
    const Sizes sizes{1, 2, 1, 1, queries, 4, 0, 3};
    const Inputs<float> in(sizes);
    expect_attention<float>(in, no_mask(), Formula{});
    AttentionOptions options;
    options.scale = 5;
    expect_attention<float>(in, no_mask(), Formula{}, options);
  }
}

}  // namespace
}  // namespace attn

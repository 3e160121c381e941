// scaled_dot_product_attention held to attention by the book: element types, sizes, heads, options.
#include "attn/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::expect_attention;
using test::Formula;
using test::Inputs;
using test::Layout;
using test::Sizes;
using test::TestTensor;

template <class T>
class AttentionOf : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double, half, bfloat16>;
TYPED_TEST_SUITE(AttentionOf, ElementTypes, test::TypeNames);

// Distinct sizes, so that swapped axes cannot cancel.
const Sizes kDistinct{2, 6, 3, 2, 7, 9, 5, 4};

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

// ---- Mixed element types.

template <class Q, class K, class V, class Out>
void check_mixed() {
  SCOPED_TRACE(std::string(test::name_of_type<Q>()) + " " + test::name_of_type<K>() + " " +
               test::name_of_type<V>() + " " + test::name_of_type<Out>());
  for (const Index queries : {3, 20}) {
    Sizes sizes = kDistinct;
    sizes.query_length = queries;
    expect_attention<Out>(Inputs<Q, K, V>(sizes, 21), no_mask(), Formula{});
    expect_attention<Out>(Inputs<Q, K, V>(sizes, 22, Layout::mixed, Layout::bshd, Layout::padded),
                          no_mask(), Formula{}, {}, Layout::permuted);
  }
}

TEST(MixedTypes, AllFourDiffer) {
  check_mixed<float, half, bfloat16, double>();
  check_mixed<double, float, half, bfloat16>();
  check_mixed<bfloat16, double, float, half>();
  check_mixed<half, bfloat16, double, float>();
}
TEST(MixedTypes, InFloat) {
  check_mixed<half, bfloat16, float, bfloat16>();
  check_mixed<bfloat16, half, half, float>();
}

/// One key, so that out is v rounded once.
template <class V, class Out>
float rounded_once(double value) {
  Tensor4Buffer<double> q({1, 1, 1, 1}), k({1, 1, 1, 1});
  Tensor4Buffer<V> v({1, 1, 1, 1});
  Tensor4Buffer<Out> out({1, 1, 1, 1});
  v(0, 0, 0, 0) = test::to<V>(value);
  scaled_dot_product_attention(q, k, v, out);
  return static_cast<float>(out(0, 0, 0, 0));
}

TEST(MixedTypes, DoubleToSixteenBitsRoundsOnce) {
  // Just above and below the middle of two neighbours: through float they would be ties.
  const double half_tie = 1 + 0x1p-11, bfloat16_tie = 1 + 0x1p-8, little = 0x1p-40;
  EXPECT_EQ((rounded_once<double, half>(half_tie + little)), 1 + 0x1p-10f);
  EXPECT_EQ((rounded_once<double, half>(half_tie)), 1);
  EXPECT_EQ((rounded_once<double, half>(half_tie - little)), 1);
  EXPECT_EQ((rounded_once<double, half>(-half_tie - little)), -1 - 0x1p-10f);
  EXPECT_EQ((rounded_once<double, half>(half_tie + 0x1p-10 - little)), 1 + 0x1p-10f);
  EXPECT_EQ((rounded_once<double, half>(half_tie + 0x1p-10)), 1 + 0x1p-9f);
  EXPECT_EQ((rounded_once<double, bfloat16>(bfloat16_tie + little)), 1 + 0x1p-7f);
  EXPECT_EQ((rounded_once<double, bfloat16>(bfloat16_tie)), 1);
  EXPECT_EQ((rounded_once<double, bfloat16>(-bfloat16_tie - little)), -1 - 0x1p-7f);
  EXPECT_EQ((rounded_once<double, half>(0x1p-60)), 0);
  EXPECT_EQ((rounded_once<double, half>(0x1.8p-25)), 0x1p-24f);  // subnormal
  EXPECT_EQ((rounded_once<double, half>(65519)), 65504);
  EXPECT_EQ((rounded_once<double, half>(65520)), test::infinity<float>());
  EXPECT_EQ((rounded_once<double, half>(1e300)), test::infinity<float>());
  EXPECT_EQ((rounded_once<double, bfloat16>(-1e300)), -test::infinity<float>());
  // Round to nearest, ties to even.
  EXPECT_EQ((rounded_once<float, bfloat16>(0.2691408770292272)), 0.26953125f);
  EXPECT_EQ((rounded_once<float, bfloat16>(1 + 0x1p-8)), 1);
  EXPECT_EQ((rounded_once<float, bfloat16>(1 + 3 * 0x1p-8)), 1 + 0x1p-6f);
}

TEST(MixedTypes, SixteenBitSumsAreHeldInFloat) {
  // 4096 values of 1 with equal weights: a sum in bfloat16 stops at 256, one in half at 2048.
  for (const Index keys : {300, 4096, 65536}) {
    for (const Index queries : {1, 20}) {
      const Sizes sizes{1, 1, 1, 1, queries, keys, 2, 3};
      Inputs<bfloat16> in(sizes);
      in.q.fill_value(bfloat16(0.0f));
      in.v.fill_value(bfloat16(1.0f));
      TestTensor<bfloat16> out(sizes.out());
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view());
      test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
        EXPECT_EQ(static_cast<float>(out(b, h, i, d)), 1.0f);
      });
    }
  }
  // The scores too: 256^2 * 128 is far above half's largest number.
  Tensor4Buffer<half> q({1, 1, 1, 128}), k({1, 1, 2, 128}), v({1, 1, 2, 1}), out({1, 1, 1, 1});
  for (Index d = 0; d < 128; ++d) q(0, 0, 0, d) = k(0, 0, 0, d) = k(0, 0, 1, d) = half(256.0f);
  v(0, 0, 0, 0) = half(1.0f);
  v(0, 0, 1, 0) = half(3.0f);
  scaled_dot_product_attention(q, k, v, out);
  EXPECT_EQ(static_cast<float>(out(0, 0, 0, 0)), 2.0f);
}

// ---- Heads.

TEST(Heads, NeighbouringQueryHeadsShareAKeyHead) {
  for (const auto& [query_heads, key_heads, value_heads] :
       std::vector<std::tuple<Index, Index, Index>>{{6, 2, 2},
                                                    {6, 2, 3},
                                                    {6, 3, 2},
                                                    {6, 6, 1},
                                                    {6, 1, 6},
                                                    {12, 4, 6},
                                                    {8, 8, 8},
                                                    {5, 1, 1}}) {
    for (const Index queries : {1, 9}) {
      const Sizes sizes{2, query_heads, key_heads, value_heads, queries, 6, 4, 3};
      SCOPED_TRACE(sizes);
      expect_attention<float>(Inputs<float>(sizes, 31), no_mask(), Formula{});
    }
  }
  // One key: out is the value head's number itself.
  const Sizes sizes{1, 6, 1, 2, 1, 1, 1, 1};
  Inputs<float> in(sizes);
  in.v.fill([](Index, Index h, Index, Index) { return static_cast<float>(h); });
  TestTensor<float> out(sizes.out());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view());
  const float expected[] = {0, 0, 0, 1, 1, 1};
  for (Index h = 0; h < 6; ++h) EXPECT_EQ(out(0, h, 0, 0), expected[h]);
}

TEST(Heads, KeysAndValuesOfOneBatchServeAll) {
  for (const bool shares_keys : {true, false}) {
    for (const bool shares_values : {true, false}) {
      for (const Index queries : {2, 17}) {
        Sizes sizes = kDistinct;
        sizes.batch = 3;
        sizes.query_length = queries;
        Inputs<float> in(sizes, 32);
        Shape4 k = sizes.k(), v = sizes.v();
        if (shares_keys) k.batch = 1;
        if (shares_values) v.batch = 1;
        in.k = TestTensor<float>(k, Layout::padded);
        in.v = TestTensor<float>(v, Layout::bshd);
        in.k.fill_uniform(1);
        in.v.fill_uniform(2);
        expect_attention<float>(in, no_mask(), Formula{});
      }
    }
  }
}

TEST(Heads, BroadcastViewsAreReadThroughTheirStrides) {
  for (const Index queries : {2, 17}) {
    Sizes sizes = kDistinct;
    sizes.query_length = queries;
    Inputs<float> in(sizes, 33);
    in.q = TestTensor<float>(sizes.q(), Stride4{0, 10, 0, 1});  // all batches, all queries
    in.k = TestTensor<float>(sizes.k(), Stride4{40, 0, 3, 0});  // all heads, all dims
    in.v = TestTensor<float>(sizes.v(), Stride4{0, 0, 0, 0});   // a single number
    in.q.fill_uniform(1);
    in.k.fill_uniform(2);
    in.v.fill_uniform(3);
    expect_attention<float>(in, no_mask(), Formula{});
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

// ---- Options.

/// Both forms, small and with several key tiles.
std::vector<Sizes> option_sizes() {
  return {{2, 4, 2, 4, 3, 10, 5, 4}, {1, 4, 2, 4, 21, 140, 5, 4}};
}

TEST(Options, ScaleOfAnySign) {
  for (const double scale : {0.0, -0.0, 1.0, -0.7, 3.5, 1e-30}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.scale = scale;
      expect_attention<float>(Inputs<float>(sizes, 41), no_mask(), Formula{}, options);
      expect_attention<double>(Inputs<double>(sizes, 41), no_mask(), Formula{}, options);
    }
  }
}

TEST(Options, TheDefaultScaleIsThatOfTheKeyDim) {
  Tensor4Buffer<float> q({1, 1, 1, 4}), k({1, 1, 2, 4}), v({1, 1, 2, 1}), out({1, 1, 1, 1});
  q(0, 0, 0, 0) = 2;
  k(0, 0, 0, 0) = 1;
  v(0, 0, 0, 0) = 1;
  scaled_dot_product_attention(q, k, v, out);
  EXPECT_NEAR(out(0, 0, 0, 0), 1 / (1 + std::exp(-1.0)), 1e-7);
}

TEST(Options, SoftcapComesBeforeBiasesAndMasks) {
  for (const double softcap : {0.5, 2.0, 30.0, 1e4}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.softcap = softcap;
      TestTensor<float> bias(sizes.scores());
      bias.fill_uniform(42, 3);
      const Formula formula = test::keeps([](Index, Index, Index, Index j) { return j < 9; }) &
                              test::changes([&](auto score, Index b, Index h, Index i, Index j) {
                                return score + static_cast<decltype(score)>(bias(b, h, i, j));
                              });
      Inputs<float> in(sizes, 43);
      expect_attention<float>(in, no_mask(), Formula{}, options);
      expect_attention<float>(in, add_bias(bias.view()) & key_lengths(9), formula, options);
      expect_attention<double>(Inputs<double>(sizes, 43), no_mask(), Formula{}, options);
      // A padded tile must not come back to life: every score is far below -softcap.
      in.q.fill_value(-100);
      in.k.fill_value(1);
      expect_attention<float>(in, no_mask(), Formula{}, options);
    }
  }
}

TEST(Options, SinksJoinTheDenominator) {
  const std::vector<double> sinks = {0.3, -test::infinity<double>(), -40, 25};
  for (const Sizes& sizes : option_sizes()) {
    AttentionOptions options;
    options.sinks = sinks;
    expect_attention<float>(Inputs<float>(sizes, 44), no_mask(), Formula{}, options);
    expect_attention<bfloat16>(Inputs<bfloat16>(sizes, 44), no_mask(), Formula{}, options);
    expect_attention<double>(Inputs<double>(sizes, 44), causal_top_left(),
                             test::keeps([](Index, Index, Index i, Index j) { return j <= i; }),
                             options);
    // With rows that have no key of their own.
    expect_attention<float>(Inputs<float>(sizes, 44), causal_from(-2),
                            test::keeps([](Index, Index, Index i, Index j) { return j <= i - 2; }),
                            options);
  }
  // All sinks absent: no bit changes.
  const std::vector<double> none(4, -test::infinity<double>());
  const Sizes sizes = option_sizes()[0];
  const Inputs<float> in(sizes, 45);
  TestTensor<float> with(sizes.out()), without(sizes.out());
  AttentionOptions options;
  options.sinks = none;
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), with.view(), no_mask(),
                               options);
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), without.view());
  EXPECT_TRUE(test::same_bits(with.view(), without.view()));
}

TEST(Options, SinksAndSplitKeys) {
  const std::vector<double> sinks = {8, -1};
  AttentionOptions options;
  options.sinks = sinks;
  for (const Index queries : {2, 12}) {
    const Sizes sizes{1, 2, 1, 1, queries, 8300, 3, 2};
    const Index offset = sizes.key_length - queries;
    expect_attention<float>(Inputs<float>(sizes, 46), no_mask(), Formula{}, options);
    // The sink counts once, also where the first split has no key.
    expect_attention<float>(Inputs<float>(sizes, 46), sliding_window(100, 0),
                            test::keeps([offset](Index, Index, Index i, Index j) {
                              return j >= i + offset - 100 && j <= i + offset;
                            }),
                            options);
  }
}

TEST(Options, DropoutHasTheReferencesBits) {
  for (const double p : {0.1, 0.3, 0.9, 1.0}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.dropout = {p, 123, 456};
      expect_attention<float>(Inputs<float>(sizes, 47), no_mask(), Formula{}, options);
      expect_attention<half>(Inputs<half>(sizes, 47), causal_top_left(),
                             test::keeps([](Index, Index, Index i, Index j) { return j <= i; }),
                             options);
      expect_attention<double>(Inputs<double>(sizes, 47), no_mask(), Formula{}, options);
    }
  }
  // Keys that are split, a window that begins within a group of four keys.
  AttentionOptions options;
  options.dropout = {0.5, 1, 2};
  expect_attention<float>(Inputs<float>({1, 1, 1, 1, 2, 4500, 2, 2}, 48), sliding_window(450, 3),
                          test::keeps([](Index, Index, Index i, Index j) {
                            return j >= i + 4498 - 450 && j <= i + 4498 + 3;
                          }),
                          options);
}

TEST(Options, DropoutOfZeroAndOne) {
  const Sizes sizes = option_sizes()[1];
  const Inputs<float> in(sizes, 49);
  TestTensor<float> plain(sizes.out()), zero(sizes.out()), all(sizes.out());
  TestTensor<float> weights(sizes.scores());
  AttentionOptions options;
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), plain.view());
  options.dropout = {0, 5, 6};
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), zero.view(), no_mask(),
                               options);
  EXPECT_TRUE(test::same_bits(plain.view(), zero.view()));
  options.dropout = {1, 5, 6};
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), all.view(), no_mask(),
                               options, {weights.view(), {}});
  const Tensor4Buffer<float> zeros(sizes.out()), no_weights(sizes.scores());
  EXPECT_TRUE(test::same_bits(all.view(), zeros.view()));
  EXPECT_TRUE(test::same_bits(weights.view(), no_weights.view()));
}

// Seed, offset, batch and head all matter.
TEST(Options, DropoutDiffersEverywhere) {
  const Sizes sizes{2, 2, 1, 1, 4, 64, 0, 1};
  const Inputs<float> in(sizes);
  const auto weights_of = [&](Dropout dropout) {
    Tensor4Buffer<float> out(sizes.out()), weights(sizes.scores());
    AttentionOptions options;
    options.dropout = dropout;
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), no_mask(),
                                 options, {weights.view(), {}});
    return weights;
  };
  const Tensor4Buffer<float> base = weights_of({0.5, 1, 2});
  EXPECT_TRUE(test::same_bits(base.view(), weights_of({0.5, 1, 2}).view()));
  EXPECT_FALSE(test::same_bits(base.view(), weights_of({0.5, 2, 2}).view()));
  EXPECT_FALSE(test::same_bits(base.view(), weights_of({0.5, 1, 3}).view()));
  const Tensor4<const float> view = base.view();
  EXPECT_FALSE(test::same_bits(view.slice_batch(0, 1), view.slice_batch(1, 1)));
  EXPECT_FALSE(test::same_bits(view.slice_heads(0, 1), view.slice_heads(1, 1)));
  EXPECT_FALSE(test::same_bits(view.slice_length(0, 1), view.slice_length(1, 1)));
  for (const float w : Span<const float>(base.data(), base.size())) {
    EXPECT_TRUE(w == 0 || w == 2.0f / 64) << w;
  }
}

// ---- The form that returns its results, and what arguments may be.

TEST(ReturningForm, GivesWhatIsWanted) {
  const Inputs<half> in(kDistinct, 51);
  TestTensor<half> out(kDistinct.out());
  TestTensor<float> weights(kDistinct.scores()), log_sum_exp(kDistinct.rows());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), no_mask(), {},
                               {weights.view(), log_sum_exp.view()});

  const auto plain = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view());
  static_assert(std::is_same_v<decltype(plain), const AttentionResult<half, float>>);
  EXPECT_TRUE(test::same_bits(plain.output.view(), out.view()));
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_TRUE(plain.log_sum_exp.empty());

  const auto all = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), no_mask(),
                                                {}, Want::weights | Want::log_sum_exp);
  EXPECT_TRUE(test::same_bits(all.output.view(), out.view()));
  EXPECT_TRUE(test::same_bits(all.weights.view(), weights.view()));
  EXPECT_TRUE(test::same_bits(all.log_sum_exp.view(), log_sum_exp.view()));

  const auto some = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), no_mask(),
                                                 {}, Want::log_sum_exp);
  EXPECT_TRUE(some.weights.empty());
  EXPECT_TRUE(test::same_bits(some.log_sum_exp.view(), log_sum_exp.view()));
}

TEST(ReturningForm, TheOutputHasTheTypeOfQ) {
  const Inputs<float, half, double> in(kDistinct, 52);
  const auto result = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(),
                                                   causal_top_left(), {}, Want::weights);
  static_assert(std::is_same_v<decltype(result), const AttentionResult<float, double>>);
  EXPECT_EQ(result.weights.shape(), kDistinct.scores());
}

TEST(Arguments, BuffersAndMatricesAreTensors) {
  Eigen::MatrixXf q = Eigen::MatrixXf::Random(3, 4), k = Eigen::MatrixXf::Random(5, 4),
                  v = Eigen::MatrixXf::Random(5, 2), out(3, 2);
  scaled_dot_product_attention(view(q), view(k), view(v), view(out));
  Eigen::MatrixXd weights =
      (q.cast<double>() * k.cast<double>().transpose() / 2).array().exp().matrix();
  for (Index i = 0; i < 3; ++i) weights.row(i) /= weights.row(i).sum();
  EXPECT_TRUE(out.isApprox((weights * v.cast<double>()).cast<float>(), 1e-5f));
}

}  // namespace
}  // namespace attn

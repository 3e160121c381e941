// Public bug reports: what 16-bit elements do to sums, constants and roundings.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

using Eigen::bfloat16;
using Eigen::half;

// philipturner/metal-flash-attention#8: q . k overflows half before it is scaled.
TEST(Precision, D06ScoresBeyondTheRangeOfHalf) {
  const Index dim = 128;
  TestTensor<half> q({1, 1, 1, dim}), k({1, 1, 2, dim}), v({1, 1, 2, 1});
  q.fill_value(half(256.0f));
  k.fill_value(half(256.0f));
  v.fill([](Index, Index, Index j, Index) { return j == 0 ? 1.0f : 3.0f; });
  const auto result =
      scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask(), {}, Want::weights);
  EXPECT_EQ(widen(result.output(0, 0, 0, 0)), 2);
  EXPECT_EQ(result.weights(0, 0, 0, 0), 0.5f);
  EXPECT_EQ(result.weights(0, 0, 0, 1), 0.5f);
}

// jax-ml/ml_dtypes#63: a sum of ones held in bfloat16 stops at 256.
TEST(Precision, D07SumsOfManyKeysDoNotStall) {
  for (const Index keys : {300, 1000, 4096, 65536}) {
    for (const Index queries : {1, 8, 40}) {
      if (keys * queries > 600000) continue;
      SCOPED_TRACE(::testing::Message() << keys << " keys, " << queries << " queries");
      TestTensor<bfloat16> q({1, 1, queries, 4}), k({1, 1, keys, 4}), v({1, 1, keys, 32});
      q.fill_value(bfloat16(0));
      k.fill_uniform(1);
      v.fill_value(bfloat16(1));
      const auto result = scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask());
      for_each_index(result.output.shape(), [&](Index b, Index h, Index i, Index d) {
        ASSERT_EQ(widen(result.output(b, h, i, d)), 1);
      });
    }
  }
}

// keras-team/keras#17571: the lowest half as a mask, plus a negative score, is -infinity in half.
TEST(Precision, D08LowestHalfAsBiasLeavesTheScoresApart) {
  const std::vector<half> q = {half(1)}, k = {half(-100), half(-50)}, v = {half(1), half(0)};
  std::vector<half> bias = {half(-65504), half(-65504)};
  AttentionOptions options;
  options.scale = 1;
  const auto result = scaled_dot_product_attention(
      bhsd(q.data(), {1, 1, 1, 1}), bhsd(k.data(), {1, 1, 2, 1}), bhsd(v.data(), {1, 1, 2, 1}),
      AnyMask(add_bias(bhsd(bias.data(), {1, 1, 1, 2}))), options, Want::weights);
  EXPECT_EQ(result.weights(0, 0, 0, 1), 1.0f);
  // exp(-50) is 1.9e-22; the bias of 65504 costs the difference of scores at most 2^-7 of 50.
  EXPECT_NEAR(result.weights(0, 0, 0, 0), 1.9287e-22, 1.9287e-22 / 64);
  EXPECT_EQ(widen(result.output(0, 0, 0, 0)), 0);
}

// stillwater-sc/universal#1133: bfloat16 is cut off instead of rounded to the nearest, ties to
// even.
TEST(Precision, D09OneRoundingToTheNearestEven) {
  const struct {
    double value, rounded;
  } cases[] = {{0.2691408770292272, 0.26953125},
               {1 + 0x1p-8, 1},                     // a tie: the even neighbour
               {1 + 3 * 0x1p-8, 1.015625},          // a tie: the even neighbour
               {1 + 0x1p-8 + 0x1p-20, 1.0078125}};  // just above a tie
  for (const auto& c : cases) {
    TestTensor<float> q({1, 1, 1, 4}), k({1, 1, 1, 4}), v({1, 1, 1, 5});
    q.fill_uniform(1);
    k.fill_uniform(2);
    v.fill_value(static_cast<float>(c.value));
    TestTensor<bfloat16> out({1, 1, 1, 5});
    scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), AnyMask());
    for (Index d = 0; d < 5; ++d) {
      EXPECT_EQ(static_cast<double>(widen(out(0, 0, 0, d))), c.rounded) << c.value;
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

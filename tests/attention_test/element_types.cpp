// Element types: mixtures of them, rounding to them, and sums that are not held in them.
#include <gtest/gtest.h>

#include <string>

#include "attention_test/distinct.hpp"
#include "attn/attention.hpp"
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

}  // namespace
}  // namespace attn

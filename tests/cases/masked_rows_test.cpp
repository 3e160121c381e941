// Public bug reports: rows without keys, and infinities and NaNs that are or are not data.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/element_types.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

template <class T>
class MaskedRows : public ::testing::Test {};
TYPED_TEST_SUITE(MaskedRows, ElementTypes, TypeNames);

// pytorch/pytorch#103963: rows of a boolean mask that are false throughout give NaN.
TYPED_TEST(MaskedRows, D01BooleanRowsOfFalseAreZero) {
  using T = TypeParam;
  using A = AccumulationType<T>;
  const Inputs<T> in({1, 1, 1, 1, 8, 8, 8, 8});
  TestTensor<bool> keep({1, 1, 8, 8});
  keep.fill([](Index, Index, Index i, Index j) { return i < 4 && j < 4; });
  const AnyMask mask = keep_where(keep.view());
  expect_attention<T>(in, mask,
                      keeps([](Index, Index, Index i, Index j) { return i < 4 && j < 4; }));

  TestTensor<T> out({1, 1, 8, 8}), alone({1, 1, 8, 8});
  TestTensor<A> weights({1, 1, 8, 8}), lse({1, 1, 8, 1});
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), mask, {},
                               AttentionOutputs<A>{weights.view(), lse.view()});
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), alone.view(), mask);
  EXPECT_TRUE(same_bits(out.view(), alone.view()));
  for (Index i = 4; i < 8; ++i) {
    for (Index d = 0; d < 8; ++d) {
      EXPECT_TRUE(same_bits(out(0, 0, i, d), T(0)));
      EXPECT_TRUE(same_bits(weights(0, 0, i, d), A(0)));
    }
    EXPECT_EQ(lse(0, 0, i, 0), -infinity<A>());
  }
}

// pytorch/pytorch#127055: a row whose first blocks of keys are all dropped becomes NaN.
TEST(MaskedRows, D02BandThatDropsWholeBlocksOfKeys) {
  for (const Index length : {63, 64, 65, 127, 128, 129, 255, 257, 640, 1000}) {
    SCOPED_TRACE(length);
    const MeanProbe<> probe(length, length, [](Index j) { return static_cast<double>(j); });
    TestTensor<bool> keep({1, 1, length, length});
    TestTensor<float> bias({1, 1, length, length});
    const auto is_seen = [](Index i, Index j) { return j <= i && j > i - 10; };
    keep.fill([&](Index, Index, Index i, Index j) { return is_seen(i, j); });
    bias.fill(
        [&](Index, Index, Index i, Index j) { return is_seen(i, j) ? 0.0f : -infinity<float>(); });
    std::vector<double> expected;
    for (Index i = 0; i < length; ++i) {
      expected.push_back(i >= 9 ? static_cast<double>(i) - 4.5 : static_cast<double>(i) / 2);
    }
    for (const AnyMask& mask : {AnyMask(keep_where(keep.view())), AnyMask(add_bias(bias.view())),
                                AnyMask(causal() & sliding_window(9, 0))}) {
      expect_means(probe.outputs(mask), expected);
      expect_means(probe.outputs(mask, {}, Want::weights), expected);
    }
  }
}

// pytorch/pytorch#141128: a NaN in q gives zeros, as if its row were fully masked.
TYPED_TEST(MaskedRows, D03NanIsDataNotAbsence) {
  using T = TypeParam;
  const Sizes sizes{2, 4, 4, 4, 16, 16, 8, 8};
  Inputs<T> in(sizes);
  const auto before =
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), AnyMask(causal()));

  for (Index d = 0; d < 8; ++d) in.q(0, 0, 3, d) = quiet_nan<T>();
  const auto with_query =
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), AnyMask(causal()));
  for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
    const T value = with_query.output(b, h, i, d);
    if (b == 0 && h == 0 && i == 3) {
      EXPECT_TRUE(std::isnan(widen(value)));
    } else {
      EXPECT_TRUE(same_bits(value, before.output(b, h, i, d)));
    }
  });

  Inputs<T> other(sizes);
  other.k(1, 2, 9, 5) = quiet_nan<T>();
  const auto with_key = scaled_dot_product_attention(other.q.view(), other.k.view(), other.v.view(),
                                                     AnyMask(causal()));
  for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
    const T value = with_key.output(b, h, i, d);
    if (b == 1 && h == 2 && i >= 9) {  // the rows that see key 9
      EXPECT_TRUE(std::isnan(widen(value)));
    } else {
      EXPECT_TRUE(same_bits(value, before.output(b, h, i, d)));
    }
  });
}

// FluxML/NNlib.jl#43: the softmax subtracts max(0, maximum), and very low rows become 0 / 0.
TEST(MaskedRows, D04VeryLowScoresKeepTheirSoftmax) {
  const std::vector<float> q = {1}, v = {1, 0};
  AttentionOptions options;
  options.scale = 1;
  const auto weights_of = [&](const std::vector<float>& k) {
    return scaled_dot_product_attention(bhsd(q.data(), {1, 1, 1, 1}), bhsd(k.data(), {1, 1, 2, 1}),
                                        bhsd(v.data(), {1, 1, 2, 1}), AnyMask(), options,
                                        Want::weights);
  };
  // exp(-1), twice with 5 epsilons, a sum and a division: 12 epsilons are above all of it.
  const double tolerance = 12 * 0x1p-23;
  const auto low = weights_of({-1000, -1001});
  EXPECT_NEAR(low.weights(0, 0, 0, 0), 0.731058579, tolerance);
  EXPECT_NEAR(low.weights(0, 0, 0, 1), 0.268941421, tolerance);
  EXPECT_NEAR(low.output(0, 0, 0, 0), 0.731058579, tolerance);
  const auto lowest = weights_of({-1e30f, -1e30f});
  EXPECT_EQ(lowest.weights(0, 0, 0, 0), 0.5f);
  EXPECT_EQ(lowest.weights(0, 0, 0, 1), 0.5f);
}

// ml-explore/mlx#1725: an additive causal mask made as flag * -infinity holds NaN where it is 0.
// There is no such helper here; a bias of zeros and infinities of each type does what causal does.
TYPED_TEST(MaskedRows, D05BiasOfZeroAndMinusInfinityIsCausal) {
  using T = TypeParam;
  const MeanProbe<T> probe = bits_probe<T>(4, 4);
  TestTensor<T> bias({1, 1, 4, 4});
  bias.fill([](Index, Index, Index i, Index j) { return j <= i ? T(0) : -infinity<T>(); });
  const std::vector<double> expected = {1, 1.5, 7.0 / 3, 3.75};
  expect_means<T>(probe.outputs(add_bias(bias.view())), expected);
  expect_means<T>(probe.outputs(causal()), expected);
}

}  // namespace
}  // namespace test
}  // namespace attn

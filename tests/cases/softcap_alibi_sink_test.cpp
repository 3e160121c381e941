// Public bug reports: softcap, ALiBi, sinks and scale, and the order they come in.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// A score below 4, its exponential, a sum and a division, for values up to 1: 4 (score) + 8 + 4
// epsilons.
constexpr double kTolerance = 16 * 0x1p-23;

// onnx/onnx#7865: softcap after the mask makes -infinity a finite score.
TEST(Softcap, D57ComesBeforeTheMask) {
  const MeanProbe<> probe(1, 2, [](Index j) { return j == 0 ? 1.0 : 0.0; });
  AttentionOptions options;
  options.softcap = 1;
  const bool keep[] = {true, false};
  const float bias[] = {0, -infinity<float>()};
  const Shape4 shape{1, 1, 1, 2};
  for (const AnyMask& mask : {AnyMask(keep_where(bhsd(keep, shape))),
                              AnyMask(add_bias(bhsd(bias, shape))), AnyMask(causal_top_left())}) {
    const auto result = scaled_dot_product_attention(probe.q.view(), probe.k.view(), probe.v.view(),
                                                     mask, options, Want::weights);
    EXPECT_EQ(result.weights(0, 0, 0, 0), 1.0f);
    EXPECT_EQ(result.weights(0, 0, 0, 1), 0.0f);
    EXPECT_EQ(result.output(0, 0, 0, 0), 1.0f);
  }
  // A finite bias is added after the cap: 3, not tanh(3).
  const float finite[] = {3, 0};
  EXPECT_NEAR(probe.outputs(add_bias(bhsd(finite, shape)), options)[0], 1 / (1 + std::exp(-3.0)),
              kTolerance);
}

// The cap itself, where few and where many rows go different ways: tanh(4), not 4.
TEST(Softcap, D57CapsTheScoresOfEveryPath) {
  for (const Index queries : {1, 40}) {
    MeanProbe<> probe(queries, 2, [](Index j) { return j == 0 ? 1.0 : 0.0; });
    probe.q.fill_value(4);
    probe.k.fill([](Index, Index, Index j, Index) { return j == 0 ? 1.0f : 0.0f; });
    AttentionOptions options;
    options.softcap = 1;
    const double expected = 1 / (1 + std::exp(-std::tanh(4.0)));
    for (const double row : probe.outputs(AnyMask(), options)) {
      EXPECT_NEAR(row, expected, kTolerance);
    }
  }
}

// ml-explore/mlx#343: slopes are wrong for head counts that are no power of two.
TEST(Alibi, D58SlopesOfAnyHeadCount) {
  const auto expect_slopes = [](Index heads, const std::vector<double>& expected) {
    const std::vector<double> slopes = alibi_slopes(heads);
    ASSERT_EQ(slopes.size(), expected.size());
    for (std::size_t h = 0; h < slopes.size(); ++h) {
      EXPECT_DOUBLE_EQ(slopes[h], expected[h]) << "head " << h << " of " << heads;
    }
  };
  expect_slopes(3, {0.0625, 0.00390625, 0.25});
  expect_slopes(6, {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
  expect_slopes(8, {0x1p-1, 0x1p-2, 0x1p-3, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8});
  expect_slopes(12, {0x1p-1, 0x1p-2, 0x1p-3, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8,
                     std::exp2(-0.5), std::exp2(-1.5), std::exp2(-2.5), std::exp2(-3.5)});
}

// pytorch/pytorch#105202: the square root of a negative scale is applied to q and k.
TEST(Scale, D59MayBeNegative) {
  const float q[] = {1}, k[] = {1, -1}, v[] = {1, 0};
  AttentionOptions options;
  options.scale = -1;
  const auto result = scaled_dot_product_attention(bhsd(q, {1, 1, 1, 1}), bhsd(k, {1, 1, 2, 1}),
                                                   bhsd(v, {1, 1, 2, 1}), AnyMask(), options);
  EXPECT_NEAR(result.output(0, 0, 0, 0), 0.119202922, kTolerance);
}

// modular/modular#6198: one path leaves the sink out of the denominator.
TEST(Sink, D60IsInEveryPathsDenominator) {
  for (const Index queries : {1, 7, 40}) {
    const MeanProbe<> probe(
        queries, 4, [](Index) { return 1.0; }, 2, 1);
    const std::vector<double> sinks = {std::log(4.0), std::log(4.0)};
    AttentionOptions options;
    options.sinks = sinks;
    for (const Want want : {Want::output, Want::weights, Want::weights | Want::log_sum_exp}) {
      const auto result = scaled_dot_product_attention(probe.q.view(), probe.k.view(),
                                                       probe.v.view(), AnyMask(), options, want);
      for_each_index({1, 2, queries, 1}, [&](Index b, Index h, Index i, Index) {
        EXPECT_NEAR(result.output(b, h, i, 0), 0.5, kTolerance);
        if (want & Want::weights) {
          for (Index j = 0; j < 4; ++j) {
            EXPECT_NEAR(result.weights(b, h, i, j), 0.125, kTolerance);
          }
        }
        if (want & Want::log_sum_exp) {
          EXPECT_NEAR(result.log_sum_exp(b, h, i, 0), 2.07944154, 2 * kTolerance);
        }
      });
    }
  }
}

// keras-team/keras-hub#2861: while decoding, ALiBi counts from the query's index, which is 0.
TEST(Alibi, D61PositionsAreAbsolute) {
  const std::vector<double> slopes = {0.5};
  const auto value = [](Index j) { return static_cast<double>(j); };
  const MeanProbe<> decode(1, 4, value), prompt(4, 4, value);
  const double tolerance = 3 * kTolerance;  // values up to 3
  EXPECT_NEAR(decode.outputs(alibi(slopes))[0], 2.08457649, tolerance);
  EXPECT_NEAR(prompt.outputs(alibi(slopes))[3], 2.08457649, tolerance);
  AttentionOptions options;
  options.query_offset = PerBatch(3);
  EXPECT_NEAR(decode.outputs(alibi(slopes), options)[0], 2.08457649, tolerance);
}

}  // namespace
}  // namespace test
}  // namespace attn

// The oracle of the other tests, held to closed forms.
#include "attn/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::infinity;
using test::message_of;
using test::quiet_nan;

const auto all_allowed = [](Index, Index, Index, Index) { return true; };
const auto unchanged = [](auto score, Index, Index, Index, Index) { return score; };

/// One query with q = 1 and key dim 1: key[j] is score j, unless a scale says otherwise.
template <class A = double>
struct OneRow {
  std::vector<double> key, value;
  AttentionOptions options;
  A out = 0, log_sum_exp = 0;
  std::vector<A> weights;

  OneRow(std::vector<double> keys, std::vector<double> values)
      : key(std::move(keys)), value(std::move(values)) {}

  template <class Allowed, class Modify>
  const OneRow& run(const Allowed& allowed, const Modify& modify) {
    const Index keys = static_cast<Index>(key.size());
    const double one = 1;
    const Tensor4<const double> q(&one, {1, 1, 1, 1}), k(key.data(), {1, 1, keys, 1}),
        v(value.data(), {1, 1, keys, 1});
    weights.assign(key.size(), 99);
    reference_attention(q, k, v, Tensor4<A>(&out, {1, 1, 1, 1}), allowed, modify, options,
                        AttentionOutputs<A>{Tensor4<A>(weights.data(), {1, 1, 1, keys}),
                                            Tensor4<A>(&log_sum_exp, {1, 1, 1, 1})});
    return *this;
  }
  const OneRow& run() { return run(all_allowed, unchanged); }
};

TEST(Reference, IsTheSoftmaxOfTheScores) {
  OneRow<> row{{0, std::log(3.0)}, {1, 5}};
  row.run();
  EXPECT_NEAR(row.weights[0], 0.25, 1e-15);
  EXPECT_NEAR(row.weights[1], 0.75, 1e-15);
  EXPECT_NEAR(row.out, 4, 1e-14);
  EXPECT_NEAR(row.log_sum_exp, std::log(4.0), 1e-15);
}

TEST(Reference, TheMaximumIsSubtracted) {
  OneRow<> low{{-1000, -1001}, {1, 0}}, high{{1e30, 1e30}, {1, 0}};
  EXPECT_NEAR(low.run().out, 0.731058578630005, 1e-14);
  EXPECT_EQ(high.run().out, 0.5);
}

TEST(Reference, ScaleIsThatOfTheKeyDim) {
  const double q[4] = {2, 0, 0, 0}, k[8] = {1, 0, 0, 0, 0, 0, 0, 0}, v[2] = {1, 0};
  double out = 0;
  const auto run = [&](const AttentionOptions& options) {
    reference_attention(Tensor4<const double>(q, {1, 1, 1, 4}),
                        Tensor4<const double>(k, {1, 1, 2, 4}),
                        Tensor4<const double>(v, {1, 1, 2, 1}), Tensor4<double>(&out, {1, 1, 1, 1}),
                        all_allowed, unchanged, options);
    return out;
  };
  EXPECT_NEAR(run({}), 0.731058578630005, 1e-14);
  AttentionOptions options;
  options.scale = -0.5;
  EXPECT_NEAR(run(options), 1 - 0.731058578630005, 1e-14);
  options.scale = 0;
  EXPECT_EQ(run(options), 0.5);
}

TEST(Reference, SoftcapComesBeforeTheScoreFunctionAndMasks) {
  OneRow<> row{{5, -5, 7}, {1, 2, 100}};
  row.options.softcap = 2;
  row.run([](Index, Index, Index, Index j) { return j != 2; },
          [](auto s, Index, Index, Index, Index j) { return j == 0 ? s + 3 : s; });
  const double capped = 2 * std::tanh(2.5);
  const double a = std::exp(capped + 3), b = std::exp(-capped);
  EXPECT_NEAR(row.out, (a + 2 * b) / (a + b), 1e-14);
  EXPECT_EQ(row.weights[2], 0);
  EXPECT_NEAR(row.log_sum_exp, std::log(a + b), 1e-14);
}

TEST(Reference, TheSinkHasNoValue) {
  const std::vector<double> sink = {std::log(4.0)}, none = {-infinity<double>()}, huge = {1000};
  OneRow<> row{{0, 0, 0, 0}, {1, 1, 1, 1}};
  row.options.sinks = sink;
  row.run();
  EXPECT_NEAR(row.out, 0.5, 1e-15);
  EXPECT_NEAR(row.weights[1], 0.125, 1e-15);
  EXPECT_NEAR(row.log_sum_exp, std::log(8.0), 1e-15);
  row.options.sinks = none;
  EXPECT_EQ(row.run().out, 1);
  row.options.sinks = huge;
  EXPECT_EQ(row.run().out, 0);
  EXPECT_EQ(row.log_sum_exp, 1000);
}

TEST(Reference, AbsentKeysAreNotRead) {
  const double nan = quiet_nan<double>();
  OneRow<> row{{1, nan, 1}, {1, nan, 3}};
  int modified = 0;
  row.run([](Index, Index, Index, Index j) { return j != 1; },
          [&](auto s, Index, Index, Index, Index j) {
            EXPECT_NE(j, 1);
            ++modified;
            return s;
          });
  EXPECT_EQ(modified, 2);
  EXPECT_EQ(row.out, 2);
  EXPECT_EQ(row.weights[1], 0);
  // A score function masks by -infinity, whatever the key holds.
  row.run(all_allowed, [](auto s, Index, Index, Index, Index j) {
    return j == 1 ? -infinity<decltype(s)>() : s;
  });
  EXPECT_EQ(row.out, 2);
  EXPECT_EQ(row.weights[1], 0);
}

TEST(Reference, ARowWithoutKeysIsZero) {
  const std::vector<double> sink = {-3};
  for (const bool has_sink : {false, true}) {
    OneRow<> row{{1, 2}, {quiet_nan<double>(), 5}};
    if (has_sink) row.options.sinks = sink;
    const double lse = has_sink ? -3 : -infinity<double>();
    row.run([](Index, Index, Index, Index) { return false; }, unchanged);
    EXPECT_TRUE(test::same_bits(row.out, 0.0));
    EXPECT_EQ(row.weights, (std::vector<double>{0, 0}));
    EXPECT_EQ(row.log_sum_exp, lse);
    row.run(all_allowed, [](auto, Index, Index, Index, Index) { return -infinity<double>(); });
    EXPECT_TRUE(test::same_bits(row.out, 0.0));
    EXPECT_EQ(row.log_sum_exp, lse);
    OneRow<> no_keys{{}, {}};
    if (has_sink) no_keys.options.sinks = sink;
    EXPECT_EQ(no_keys.run().out, 0);
    EXPECT_EQ(no_keys.log_sum_exp, lse);
  }
}

TEST(Reference, InfinityAndNanAreData) {
  const double inf = infinity<double>(), nan = quiet_nan<double>();
  for (const double bad : {inf, nan}) {
    OneRow<> row{{0, bad, 1}, {1, 2, 3}};
    row.run([](Index, Index, Index, Index j) { return j != 2; }, unchanged);
    EXPECT_TRUE(std::isnan(row.out));
    EXPECT_TRUE(std::isnan(row.weights[0]));
    EXPECT_TRUE(std::isnan(row.weights[1]));
    EXPECT_EQ(row.weights[2], 0);
    EXPECT_TRUE(std::isnan(row.log_sum_exp));
  }
  OneRow<> value{{0, 1}, {1, inf}};
  EXPECT_EQ(value.run().out, inf);
  OneRow<> lowest{{std::numeric_limits<double>::lowest()}, {4}};
  EXPECT_EQ(lowest.run().out, 4);
}

TEST(Reference, DropoutComesAfterTheSoftmax) {
  OneRow<> row{std::vector<double>(40), std::vector<double>(40, 1)};
  row.options.dropout = {0.25, 11, 12};
  row.run();
  const RandomPlane random(RandomPlane::Stream::attention_weights, 11, 12, 0, 0);
  double kept = 0;
  for (Index j = 0; j < 40; ++j) {
    const bool drops = random.bits(0, j) < (std::uint32_t{1} << 30);
    EXPECT_EQ(row.weights[static_cast<std::size_t>(j)], drops ? 0 : 1 / 40.0 / 0.75);
    kept += !drops;
  }
  EXPECT_GT(kept, 20);
  EXPECT_LT(kept, 40);
  EXPECT_NEAR(row.out, kept / 30, 1e-14);
  EXPECT_NEAR(row.log_sum_exp, std::log(40.0), 1e-14) << "the denominator knows no dropout";
  row.options.dropout.probability = 1;
  EXPECT_EQ(row.run().out, 0);
  // What is dropped is not read.
  row.value.assign(40, quiet_nan<double>());
  EXPECT_EQ(row.run().out, 0);
}

TEST(Reference, HeadsAndBatchesAreShared) {
  // out is the number of the key head plus ten times that of the value head.
  Tensor4Buffer<float> q({2, 6, 1, 1}), k({1, 3, 2, 1}), v({2, 2, 2, 1}), out({2, 6, 1, 1});
  std::fill_n(q.data(), q.size(), 1.0f);
  test::for_each_index(k.shape(), [&](Index, Index h, Index j, Index) {
    k(0, h, j, 0) = j == 0 ? static_cast<float>(h) : 0;
  });
  test::for_each_index(v.shape(), [&](Index b, Index h, Index j, Index) {
    v(b, h, j, 0) = j == 0 ? static_cast<float>(10 * b + h + 1) : 0;
  });
  reference_attention(q.view(), k.view(), v.view(), out.view(), all_allowed, unchanged);
  test::for_each_index(out.shape(), [&](Index b, Index h, Index, Index) {
    const double weight = 1 / (1 + std::exp(-static_cast<double>(h / 2)));
    EXPECT_NEAR(static_cast<double>(out(b, h, 0, 0)),
                weight * static_cast<double>(10 * b + h / 3 + 1), 1e-6);
  });
}

TEST(Reference, FunctionsSeeBatchHeadQueryAndKey) {
  const Shape4 shape{2, 3, 4, 5};
  Tensor4Buffer<double> q({2, 3, 4, 1}), k({2, 1, 5, 1}), out({2, 3, 4, 1});
  Tensor4Buffer<int> seen(shape);
  reference_attention(
      q.view(), k.view(), k.view(), out.view(),
      [&](Index b, Index h, Index i, Index j) {
        seen(b, h, i, j) += 1;
        return true;
      },
      [&](double score, Index b, Index h, Index i, Index j) {
        seen(b, h, i, j) += 10;
        return score;
      });
  for (const int s : Span<const int>(seen.data(), seen.size())) EXPECT_EQ(s, 11);
}

TEST(Reference, IsComputedInTheTypeOfItsOutputs) {
  // The weights of 1/3 tell the type by their error.
  const auto error_of = [](auto type) {
    using A = decltype(type);
    OneRow<A> row{{0, 0, 0}, {1, 1, 1}};
    row.run();
    return static_cast<double>(std::abs(static_cast<long double>(row.weights[0]) - 1.0L / 3));
  };
  EXPECT_NEAR(error_of(0.0f), 1e-8, 9e-9);
  EXPECT_NEAR(error_of(0.0), 2e-17, 1.9e-17);
  EXPECT_LT(error_of(0.0L), 2e-17 * (sizeof(long double) > sizeof(double) ? 1e-2 : 1));
  // By default, double: floats that cancel in float do not.
  const float q = 1, k[2] = {16777216, 1}, v[3] = {1, 1, 0};
  float out = 0;
  Tensor4<float> view(&out, {1, 1, 1, 1});
  reference_attention(Tensor4<const float>(&q, {1, 1, 1, 1}), Tensor4<const float>(k, {1, 1, 2, 1}),
                      Tensor4<const float>(v, {1, 1, 2, 1}), view, all_allowed,
                      [](double s, Index, Index, Index, Index j) {
                        return j == 0 ? s + 1 - 16777216 : s;  // 1 in double, 0 in float
                      });
  EXPECT_EQ(out, 1);
  reference_attention(
      Tensor4<const float>(&q, {1, 1, 1, 1}), Tensor4<const float>(k, {1, 1, 2, 1}),
      Tensor4<const float>(v + 1, {1, 1, 2, 1}), view, all_allowed,
      [](double s, Index, Index, Index, Index j) { return j == 0 ? s + 1 - 16777216 : s; });
  EXPECT_EQ(out, 0.5f) << "v is {1, 0}, the weights are equal";
}

TEST(Reference, RoundsOnce) {
  const double q = 0, v = 1 + 0x1p-11 + 0x1p-40;
  const Tensor4<const double> query(&q, {1, 1, 1, 1}), value(&v, {1, 1, 1, 1});
  Eigen::half narrow(0.0f);
  reference_attention(query, query, value, Tensor4<Eigen::half>(&narrow, {1, 1, 1, 1}), all_allowed,
                      unchanged);
  EXPECT_EQ(static_cast<float>(narrow), 1 + 0x1p-10f) << "through float it would be 1";
}

TEST(Reference, RefusesWhatDoesNotFit) {
  Tensor4Buffer<double> q({2, 6, 4, 5}), k({2, 3, 7, 5}), v({2, 2, 7, 3}), out({2, 6, 4, 3});
  const auto error_of = [&](const auto& q_, const auto& k_, const auto& v_, auto out_) {
    return message_of<ShapeError>(
        [&] { reference_attention(q_, k_, v_, out_, all_allowed, unchanged); });
  };
  EXPECT_EQ(error_of(q.view(), k.view(), v.view(), out.view()), "(nothing was thrown)");
  EXPECT_EQ(error_of(q.view(), k.view(), v.view(), q.view()),
            "reference_attention: the shapes do not fit; got q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 5]");
  const Tensor4<double> four_heads(k.data(), {2, 4, 4, 5});
  EXPECT_EQ(error_of(q.view(), four_heads, v.view(), out.view()),
            "reference_attention: the shapes do not fit; got q [2, 6, 4, 5], k [2, 4, 4, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 3]");
  Tensor4Buffer<double> weights({2, 6, 7, 4});
  EXPECT_EQ(message_of<ShapeError>([&] {
              reference_attention(q.view(), k.view(), v.view(), out.view(), all_allowed, unchanged,
                                  {}, AttentionOutputs<double>{weights.view(), {}});
            }),
            "reference_attention: the shapes do not fit; got q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 7, 4]");
  const auto option_error = [&](const AttentionOptions& options) {
    return message_of<std::invalid_argument>([&] {
      reference_attention(q.view(), k.view(), v.view(), out.view(), all_allowed, unchanged,
                          options);
    });
  };
  AttentionOptions options;
  options.dropout.probability = 1.5;
  EXPECT_EQ(option_error(options),
            "reference_attention: dropout.probability must lie within 0 and 1, got 1.500000");
  options = {};
  options.softcap = -1;
  EXPECT_EQ(option_error(options),
            "reference_attention: softcap must be finite and 0 or more, got -1.000000");
  options = {};
  options.scale = quiet_nan<double>();
  EXPECT_EQ(option_error(options), "reference_attention: scale must be finite, got nan");
  options = {};
  const std::vector<double> sinks(5);
  options.sinks = sinks;
  EXPECT_EQ(option_error(options),
            "reference_attention: sinks must hold one number a query head, 6, got 5");
}

}  // namespace
}  // namespace attn

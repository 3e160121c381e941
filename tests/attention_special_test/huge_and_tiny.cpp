// Huge and tiny scores, biases, sinks and values, and the exponential: line 6
// of the contract.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention_special_test/one_query.hpp"
#include "attn/attention.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::half;
using test::infinity;
using test::Inputs;
using test::OneQuery;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

// A weight far below the largest is exact relative to itself: (4 + |s - m|) epsilon, one rounding
// more for the product and one for the division.
template <class T>
void check_far_weights(const std::vector<double>& distances, double huge) {
  const double eps = static_cast<double>(test::epsilon<T>());
  for (const double distance : distances) {
    for (const bool huge_first : {true, false}) {
      for (const std::size_t between : {std::size_t{0}, std::size_t{5}, std::size_t{300}}) {
        SCOPED_TRACE("distance " + std::to_string(distance) + ", between " +
                     std::to_string(between));
        OneQuery query{{0, distance}, {huge, 0}, {}};
        if (!huge_first) query = OneQuery{{distance, 0}, {0, huge}, {}};
        // Keys without a value and weight in between: the maximum is found in another tile.
        query.key.insert(query.key.begin() + 1, between, -300 - distance);
        query.value.insert(query.value.begin() + 1, between, 0.0);
        const double weight = std::exp(-distance) / (1 + std::exp(-distance));
        test::for_each_form<T>(query, no_mask(), [&](const auto& r, Index i) {
          const double expected = huge * weight;
          EXPECT_NEAR(static_cast<double>(r.out(0, 0, i, 0)), expected,
                      (4 + distance + 2) * eps * expected);
        });
      }
    }
  }
}
TEST(HugeNumbers, AFarWeightCountsInFloat) {
  check_far_weights<float>({1, 5, 5.5, 6, 20, 40, 60, 69}, 1e30);  // e^-69 > 2^-100
}
TEST(HugeNumbers, AFarWeightCountsInDouble) {
  check_far_weights<double>({1, 5, 5.5, 6, 20, 60, 300, 690}, 1e300);  // e^-690 > 2^-1000
}

// The exponential alone: two keys with the scores 0 and -x, for many x, both orders of the keys,
// and both forms. The weight of the far key is e^-x / (1 + e^-x), right relative to itself: (4 + x)
// epsilon for the exponential, two for the denominator (its own share of the first, and its
// rounding), one for the division.
template <class T>
void check_exponential(double end, Index count) {
  const long double eps = test::epsilon<T>();
  for (const bool far_first : {false, true}) {
    for (const Index queries : {count, Index{4}}) {
      const Shape4 rows{count / queries, 1, queries, 1};
      TestTensor<T> q(rows), k({1, 1, 2, 1}), v({1, 1, 2, 1}), out(rows),
          weights({rows.batch, 1, queries, 2});
      q.fill([&](Index b, Index, Index i, Index) {
        return end * static_cast<double>(b * queries + i) / static_cast<double>(count);
      });
      k.fill([&](Index, Index, Index j, Index) { return (j == 0) == far_first ? -1 : 0; });
      v.fill_value(1);
      AttentionOptions options;
      options.scale = 1;
      for (const InstructionSet set : test::instruction_sets()) {
        options.instruction_set = set;
        scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), no_mask(), options,
                                     {weights.view(), {}});
        long double worst = 0;
        test::for_each_index(rows, [&](Index b, Index, Index i, Index) {
          const long double x = static_cast<long double>(q(b, 0, i, 0)), far = std::exp(-x);
          const long double expected = far / (1 + far);
          const long double actual = static_cast<long double>(weights(b, 0, i, far_first ? 0 : 1));
          worst = (std::max)(worst, std::abs(actual / expected - 1) / eps / (4 + x + 3));
        });
        EXPECT_LE(worst, 1) << name_of(set) << ", " << queries << " queries";
      }
    }
  }
}
TEST(Exponential, IsRightRelativeToItselfInFloat) {
  check_exponential<float>(100 * std::log(2.0), 40000);
}
TEST(Exponential, IsRightRelativeToItselfInDouble) {
  check_exponential<double>(1000 * std::log(2.0), 40000);
}

TEST(HugeNumbers, ScoresOfAnySize) {
  struct Case {
    std::vector<double> key;
    double weight;  // of the second
  };
  const double most = 3e38;
  for (const Case& c : std::vector<Case>{{{-1e30, -1e30}, 0.5},
                                         {{1e30, 1e30}, 0.5},
                                         {{1e30, -1e30}, 0},
                                         {{-1e30, 1e30}, 1},
                                         {{most, -most}, 0},
                                         {{-most, most}, 1},
                                         {{-most, -most}, 0.5},
                                         {{most, most}, 0.5},
                                         {{-1000, -1001}, 1 / (1 + std::exp(1.0))}}) {
    test::for_each_form<float>(OneQuery{c.key, {1, 3}, {}}, no_mask(), [&](const auto& r, Index i) {
      EXPECT_NEAR(r.out(0, 0, i, 0), 1 + 2 * c.weight, 1e-6);
      EXPECT_NEAR(r.weights(0, 0, i, 1), c.weight, 1e-6);
    });
  }
}

TEST(HugeNumbers, TheMaximumMayRiseByAnyStep) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {-1e30, 1e30}, {-3e38, 3e38}, {0, 1e30}, {-1e30, 0}, {0, 100}}) {
    // 199 low scores with huge values, and one high score in the first or in the last tile.
    OneQuery last{std::vector<double>(200, low), std::vector<double>(200, 1e30), {}};
    OneQuery first = last;
    last.key[199] = first.key[0] = high;
    last.value[199] = first.value[0] = 3;
    for (const OneQuery& query : {first, last}) {
      // e^-100 * 1e30 * 199 is 7.4e-12 of 3; the others are 0.
      test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
        EXPECT_NEAR(r.out(0, 0, i, 0), 3, 1e-6);
      });
    }
  }
}

TEST(HugeNumbers, BiasesOfAnySize) {
  const double lowest = std::numeric_limits<float>::lowest();
  const double wide = std::numeric_limits<double>::lowest();
  const auto expect_out = [](const std::vector<double>& key, const std::vector<double>& bias,
                             double expected) {
    const Tensor4<const double> view(bias.data(), {1, 1, 1, static_cast<Index>(bias.size())});
    const OneQuery query{key, {1, 3}, {}};
    test::for_each_form<float>(query, add_bias(view), [&](const auto& r, Index i) {
      EXPECT_NEAR(r.out(0, 0, i, 0), expected, 1e-6);
    });
  };
  expect_out({0, 0}, {lowest, lowest}, 2);    // a finite bias never masks by itself
  expect_out({-1, -2}, {lowest, lowest}, 2);  // too small to be told apart
  expect_out({0, 0}, {wide, wide}, 2);        // clamped to float's range
  expect_out({0, 0}, {wide, 0}, 3);
  expect_out({0, 0}, {-wide, 0}, 1);
  expect_out({0, 0}, {lowest, -infinity<double>()}, 1);
  expect_out({-3e38, 0}, {-3e38, lowest}, 3);  // the sum overflows: absent
  expect_out({-1e32, 0}, {lowest, lowest}, 3);
  expect_out({-1e30, 0}, {lowest, lowest}, 2);  // less than half an ulp: not absent
  expect_out({-3e38, -3e38}, {-3e38, wide}, 0);
  // Half's lowest number is finite in float: differences survive.
  const half lows[2] = {std::numeric_limits<half>::lowest(), std::numeric_limits<half>::lowest()};
  const OneQuery query{{-100, -50}, {1, 0}, {}};
  test::for_each_form<half>(query, add_bias(Tensor4<const half>(lows, {1, 1, 1, 2})),
                            [](const auto& r, Index i) {
                              EXPECT_LT(static_cast<float>(r.out(0, 0, i, 0)), 1e-6f);
                              EXPECT_EQ(r.weights(0, 0, i, 1), 1);
                            });
}

TEST(HugeNumbers, SinksOfAnySize) {
  const std::vector<double> huge = {1e30}, low = {-1e30}, four = {std::log(4.0)};
  OneQuery query{{0, 0, 0, 0}, {1, 1, 1, 1}, {}};
  query.options.sinks = huge;
  test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_EQ(r.out(0, 0, i, 0), 0);
    EXPECT_EQ(r.log_sum_exp(0, 0, i, 0), 1e30f);
  });
  query.options.sinks = low;
  test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_EQ(r.out(0, 0, i, 0), 1);
    EXPECT_NEAR(r.log_sum_exp(0, 0, i, 0), std::log(4.0), 1e-6);
  });
  query.options.sinks = four;
  test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_NEAR(r.out(0, 0, i, 0), 0.5, 1e-6);
    EXPECT_NEAR(r.weights(0, 0, i, 2), 0.125, 1e-7);
    EXPECT_NEAR(r.log_sum_exp(0, 0, i, 0), std::log(8.0), 1e-6);
  });
}

TEST(HugeNumbers, ValuesNearTheLargestAreSafe) {
  // 2^8 * Sk * max|V| is finite: 128 keys of 2^112, whatever the order of the maximum.
  OneQuery query{std::vector<double>(128), std::vector<double>(128, 0x1p112), {}};
  for (std::size_t j = 0; j < 128; ++j) query.key[j] = 0.04 * static_cast<double>(j);
  test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_NEAR(static_cast<double>(r.out(0, 0, i, 0)), 0x1p112, 0x1p112 * 1e-5);
  });
}

TEST(TinyNumbers, SubnormalsAreKept) {
  const double tiny = 0x1p-140;  // subnormal in float
  const OneQuery query{{0, 0}, {tiny, 3 * tiny}, {}};
  test::for_each_form<float>(
      query, no_mask(), [&](const auto& r, Index i) { EXPECT_EQ(r.out(0, 0, i, 0), 2 * tiny); });
  // In the scores: the product with a large q is an ordinary number.
  Inputs<float> in(Sizes{1, 1, 1, 1, 20, 2, 1, 1});
  in.q.fill_value(0x1p100f);
  in.k.fill([&](Index, Index, Index j, Index) { return j == 0 ? 0 : static_cast<float>(tiny); });
  in.v.fill([&](Index, Index, Index j, Index) { return j == 0 ? 1 : 3; });
  AttentionOptions options;
  options.scale = 0x1p40;
  const double weight = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(test::run(in, no_mask(), options).out(0, 0, 19, 0), 1 + 2 * weight, 1e-6);
}

// A weight of an absent key is +0, not a tiny number that makes every product slow.
TEST(TinyNumbers, MaskedWeightsAreExactlyZero) {
  const Sizes sizes{1, 1, 1, 1, 20, 200, 4, 3};
  const Inputs<float> in(sizes, 77);
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    const auto r =
        test::run(in, keep_if([](ScorePosition at) { return at.key % 50 == 3; }), options);
    test::for_each_index(sizes.scores(), [&](Index b, Index h, Index i, Index j) {
      if (j % 50 != 3) {
        EXPECT_TRUE(same_bits(r.weights(b, h, i, j), 0.0f));
      }
    });
  }
}

}  // namespace
}  // namespace attn

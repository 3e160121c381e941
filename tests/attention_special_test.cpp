// What is absent, infinite, NaN, huge or tiny: lines 6, 9 and 10 of the contract.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::infinity;
using test::Inputs;
using test::Kind;
using test::MaskData;
using test::quiet_nan;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

/// Everything a call gives.
template <class T, class A = T>
struct Results {
  Tensor4Buffer<T> out;
  Tensor4Buffer<A> weights, log_sum_exp;
};

template <class T, class M>
Results<T, AccumulationType<T>> run(const Inputs<T>& in, const M& mask,
                                    const AttentionOptions& options = {}) {
  const Shape4 q = in.q.shape();
  Results<T, AccumulationType<T>> results;
  results.out = Tensor4Buffer<T>({q.batch, q.heads, q.length, in.v.shape().dim});
  results.weights =
      Tensor4Buffer<AccumulationType<T>>({q.batch, q.heads, q.length, in.k.shape().length});
  results.log_sum_exp = Tensor4Buffer<AccumulationType<T>>({q.batch, q.heads, q.length, 1});
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out, mask, options,
                               {results.weights.view(), results.log_sum_exp.view()});
  return results;
}

/// One query, its rows all equal: the call as decode does it (1 row) and as prefill does (20).
struct OneQuery {
  std::vector<double> key, value;  // key dim 1, scale 1, q = 1: the key is the score
  AttentionOptions options;

  template <class T, class M = NoMask>
  Results<T, AccumulationType<T>> run(Index rows, const M& mask = M()) const {
    const Index keys = static_cast<Index>(key.size());
    Inputs<T> in(Sizes{1, 1, 1, 1, rows, keys, 1, 1});
    in.q.fill_value(test::to<T>(1));
    in.k.fill([&](Index, Index, Index j, Index) {
      return test::to<T>(key[static_cast<std::size_t>(j)]);
    });
    in.v.fill([&](Index, Index, Index j, Index) {
      return test::to<T>(value[static_cast<std::size_t>(j)]);
    });
    AttentionOptions with_scale = options;
    if (!with_scale.scale) with_scale.scale = 1;
    return attn::run(in, mask, with_scale);
  }
};

/// Calls check(results, last_row) for both forms and all instruction sets.
template <class T, class M, class F>
void for_each_form(OneQuery query, const M& mask, const F& check) {
  for (const InstructionSet set : test::instruction_sets()) {
    for (const Index rows : {1, 20}) {
      SCOPED_TRACE(std::string(detail::name_of(set)) + ", rows " + std::to_string(rows));
      query.options.instruction_set = set;
      const auto results = query.run<T>(rows, mask);
      check(results, rows - 1);
    }
  }
}

// ---- Absent keys.

/// Puts poison into some keys. A row that sees none of them keeps every bit; a row that sees one
/// is NaN, if the poison is.
template <class T>
void check_hidden_poison(const Sizes& sizes, Index offset, AttentionOptions options = {}) {
  const MaskData<T> data(sizes, offset);
  const Inputs<T> in(sizes, 71);
  for (const Kind& kind : test::kinds_of(data, sizes, offset)) {
    if (!kind.is_top_left) options.query_offset = offset;
    if (kind.is_top_left) options.query_offset.reset();
    SCOPED_TRACE(kind.name);
    const auto clean = run(in, kind.mask, options);
    for (const T poison : {quiet_nan<T>(), infinity<T>(), -infinity<T>(), test::to<T>(6e4)}) {
      const bool is_nan = poison != poison;
      for (const bool in_keys : {true, false}) {
        SCOPED_TRACE(std::string(in_keys ? "K and V" : "V") + " hold " +
                     std::to_string(static_cast<float>(poison)));
        // A third of the keys, others in each head.
        const auto is_poisoned = [&](Index h, Index j) { return (j + h) % 3 == 0; };
        Inputs<T> poisoned = in;
        test::for_each_index(sizes.k(), [&](Index b, Index h, Index j, Index d) {
          if (in_keys && is_poisoned(h, j)) poisoned.k(b, h, j, d) = poison;
        });
        test::for_each_index(sizes.v(), [&](Index b, Index h, Index j, Index d) {
          if (is_poisoned(h, j)) poisoned.v(b, h, j, d) = poison;
        });
        const auto results = run(poisoned, kind.mask, options);
        test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
          const Index key_head = h / (sizes.query_heads / sizes.key_heads);
          const Index value_head = h / (sizes.query_heads / sizes.value_heads);
          bool sees_key = false, sees_value = false;
          for (Index j = 0; j < sizes.key_length; ++j) {
            if (!kind.formula.allows(b, h, i, j)) continue;
            sees_key = sees_key || (in_keys && is_poisoned(key_head, j));
            sees_value = sees_value || is_poisoned(value_head, j);
          }
          const std::string at =
              "(" + std::to_string(b) + ", " + std::to_string(h) + ", " + std::to_string(i) + ")";
          for (Index d = 0; d < sizes.value_dim; ++d) {
            const T out = results.out(b, h, i, d);
            if (!sees_key && !sees_value) {
              EXPECT_TRUE(same_bits(out, clean.out(b, h, i, d))) << "out of row " << at;
            } else if (is_nan) {
              EXPECT_TRUE(out != out) << "out of row " << at << " saw a NaN";
            }
          }
          const auto lse = results.log_sum_exp(b, h, i, 0);
          if (!sees_key) {
            EXPECT_TRUE(same_bits(lse, clean.log_sum_exp(b, h, i, 0))) << "lse of row " << at;
          } else if (is_nan) {
            EXPECT_TRUE(lse != lse) << "lse of row " << at << " saw a NaN";
          }
          for (Index j = 0; j < sizes.key_length; ++j) {
            const auto weight = results.weights(b, h, i, j);
            if (!sees_key) {
              EXPECT_TRUE(same_bits(weight, clean.weights(b, h, i, j)))
                  << "weight of key " << j << " of row " << at;
            } else if (is_nan && kind.formula.allows(b, h, i, j)) {
              EXPECT_TRUE(weight != weight) << "weight of key " << j << " of row " << at;
            } else if (is_nan) {
              EXPECT_TRUE(same_bits(weight, decltype(weight)(0)))
                  << "weight of the absent key " << j << " of row " << at;
            }
          }
        });
      }
    }
  }
}

TEST(AbsentKeys, AreNotSeenByAFewRows) { check_hidden_poison<float>({2, 4, 2, 2, 3, 11, 4, 3}, 8); }
TEST(AbsentKeys, AreNotSeenByRowsOfSeveralHeads) {
  check_hidden_poison<float>({2, 6, 3, 2, 9, 20, 4, 3}, 11);
}
TEST(AbsentKeys, AreNotSeenInAnyOfSeveralTiles) {
  check_hidden_poison<float>({1, 2, 1, 1, 30, 150, 3, 2}, 120);
}
TEST(AbsentKeys, AreNotSeenInDoubleAndHalf) {
  check_hidden_poison<double>({1, 2, 1, 2, 13, 15, 4, 3}, 2);
  check_hidden_poison<half>({1, 2, 1, 2, 13, 15, 4, 3}, 2);
}
TEST(AbsentKeys, AreNotSeenUnderSoftcapAndSinks) {
  AttentionOptions options;
  options.softcap = 2;
  const std::vector<double> sinks = {1, -1};
  options.sinks = sinks;
  check_hidden_poison<float>({1, 2, 1, 2, 13, 15, 4, 3}, 2, options);
}
TEST(AbsentKeys, AreNotSeenInSplitKeys) {
  check_hidden_poison<float>({1, 2, 1, 1, 2, 4200, 2, 2}, 4198);
  check_hidden_poison<float>({1, 2, 1, 1, 9, 4200, 2, 2}, 4191);
}

// A bias is not read where another mask drops the key, on either side of it.
TEST(AbsentKeys, HideTheirBias) {
  for (const Sizes& sizes : test::mask_sizes()) {
    const MaskData<float> data(sizes, 0);
    const Inputs<float> in(sizes, 72);
    TestTensor<float> bias(sizes.scores()), poisoned(sizes.scores());
    bias.fill_uniform(73, 2);
    for (const float poison : {quiet_nan<float>(), infinity<float>(), 3e38f}) {
      poisoned.fill([&](Index b, Index h, Index i, Index j) {
        return data.full(b, h, i, j) ? bias(b, h, i, j) : poison;
      });
      const auto expected = run(in, add_bias(bias.view()) & keep_where(data.full.view()));
      const auto after = run(in, add_bias(poisoned.view()) & keep_where(data.full.view()));
      const auto before = run(in, keep_where(data.full.view()) & add_bias(poisoned.view()));
      for (const auto* const results : {&after, &before}) {
        EXPECT_TRUE(same_bits(results->out.view(), expected.out.view()));
        EXPECT_TRUE(same_bits(results->weights.view(), expected.weights.view()));
        EXPECT_TRUE(same_bits(results->log_sum_exp.view(), expected.log_sum_exp.view()));
      }
    }
  }
}

TEST(AbsentKeys, ABiasOfMinusInfinityHoldsWhateverComesLater) {
  const double bias_values[] = {0, -infinity<double>(), 0};
  Tensor4<const double> bias(bias_values, {1, 1, 1, 3});
  const auto revive = modify_score([](auto, ScorePosition) { return 1; });
  const OneQuery query{{0, quiet_nan<double>(), 0}, {1, quiet_nan<double>(), 3}, {}};
  for_each_form<float>(query, add_bias(bias) & revive, [](const auto& r, Index i) {
    EXPECT_EQ(r.out(0, 0, i, 0), 2);
    EXPECT_EQ(r.weights(0, 0, i, 1), 0);
    EXPECT_NEAR(r.log_sum_exp(0, 0, i, 0), 1 + std::log(2.0), 1e-6);
  });
}

TEST(AbsentKeys, AScoreOfMinusInfinityIsAbsent) {
  // q * k is -infinity by itself, by overflow, and by a score function; V is NaN each time.
  for (const double key : {-infinity<double>(), -3e38}) {
    OneQuery query{{1, key, 1}, {1, quiet_nan<double>(), 3}, {}};
    query.options.scale = 2;
    for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
      EXPECT_EQ(r.out(0, 0, i, 0), 2);
      EXPECT_TRUE(same_bits(r.weights(0, 0, i, 1), 0.0f));
    });
  }
  const OneQuery query{{1, 2, 1}, {1, quiet_nan<double>(), 3}, {}};
  for_each_form<double>(query, modify_score([](double score, ScorePosition at) {
                          return at.key == 1 ? -infinity<double>() : score;
                        }),
                        [](const auto& r, Index i) { EXPECT_EQ(r.out(0, 0, i, 0), 2); });
  // All of them.
  const OneQuery none{{-infinity<double>(), -3e38}, {quiet_nan<double>(), 5}, {}};
  OneQuery doubled = none;
  doubled.options.scale = 2;
  for_each_form<float>(doubled, no_mask(), [](const auto& r, Index i) {
    EXPECT_TRUE(same_bits(r.out(0, 0, i, 0), 0.0f));
    EXPECT_EQ(r.log_sum_exp(0, 0, i, 0), -infinity<float>());
  });
}

// A softcap makes an infinite score finite: the key is there.
TEST(AbsentKeys, ASoftcapBringsInfiniteScoresBack) {
  OneQuery query{{-infinity<double>(), infinity<double>()}, {0, 1}, {}};
  query.options.softcap = 0.5;
  const double expected = 1 / (1 + std::exp(-1.0));
  for_each_form<float>(query, no_mask(), [&](const auto& r, Index i) {
    EXPECT_NEAR(r.out(0, 0, i, 0), expected, 1e-6);
  });
}

// ---- Rows without keys.

TEST(EmptyRows, GiveZerosAndTheSink) {
  const std::vector<double> sinks = {1.5, -infinity<double>(), -1e30};
  for (const Index queries : {2, 20}) {
    const Sizes sizes{2, 3, 1, 3, queries, 5, 2, 2};
    Inputs<float> in(sizes);
    in.q.fill_value(quiet_nan<float>());
    in.k.fill_value(infinity<float>());
    in.v.fill_value(quiet_nan<float>());
    bool no[1] = {false};
    const float dropped[1] = {-infinity<float>()};
    const std::vector<AnyMask> masks = {keep_where(Tensor4<bool>(no, {1, 1, 1, 1})),
                                        add_bias(Tensor4<const float>(dropped, {1, 1, 1, 1})),
                                        key_lengths(0), causal_from(-100),
                                        drop_if([](ScorePosition) { return true; })};
    for (const AnyMask& mask : masks) {
      for (const bool has_sinks : {false, true}) {
        AttentionOptions options;
        if (has_sinks) options.sinks = sinks;
        const auto r = run(in, mask, options);
        test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
          EXPECT_TRUE(same_bits(r.out(b, h, i, d), 0.0f));
        });
        test::for_each_index(sizes.scores(), [&](Index b, Index h, Index i, Index j) {
          EXPECT_TRUE(same_bits(r.weights(b, h, i, j), 0.0f));
        });
        test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
          EXPECT_EQ(r.log_sum_exp(b, h, i, 0),
                    has_sinks ? static_cast<float>(sinks[static_cast<std::size_t>(h)])
                              : -infinity<float>());
        });
      }
    }
  }
}

TEST(EmptyRows, NeighboursAreThoseOfThePart) {
  // Rows 4 .. 7 see nothing; rows 0 .. 3 see keys 0 .. 3.
  const Sizes sizes{1, 1, 1, 1, 8, 8, 8, 8};
  const Inputs<double> in(sizes, 74);
  TestTensor<bool> mask({1, 1, 8, 8});
  mask.fill([](Index, Index, Index i, Index j) { return i < 4 && j < 4; });
  test::expect_attention<double>(
      in, keep_where(mask.view()),
      test::keeps([](Index, Index, Index i, Index j) { return i < 4 && j < 4; }));
}

// ---- NaN and infinity that are seen.

TEST(NotFinite, ANanInAQueryStaysInItsRow) {
  for (const Index queries : {3, 33}) {
    const Sizes sizes{2, 4, 2, 2, queries, 16, 8, 5};
    Inputs<float> in(sizes, 75);
    const auto clean = run(in, no_mask());
    in.q(1, 2, 2, 3) = quiet_nan<float>();
    const auto results = run(in, no_mask());
    test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      const float out = results.out(b, h, i, d);
      if (b == 1 && h == 2 && i == 2) {
        EXPECT_TRUE(std::isnan(out));
      } else {
        EXPECT_TRUE(same_bits(out, clean.out(b, h, i, d)));
      }
    });
    for (Index j = 0; j < sizes.key_length; ++j)
      EXPECT_TRUE(std::isnan(results.weights(1, 2, 2, j)));
    EXPECT_TRUE(std::isnan(results.log_sum_exp(1, 2, 2, 0)));
  }
}

TEST(NotFinite, AScoreOfPlusInfinityOrNanMakesTheRowNan) {
  for (const double bad : {infinity<double>(), quiet_nan<double>(), -quiet_nan<double>()}) {
    for (const std::size_t place : {0u, 1u, 130u, 299u}) {
      OneQuery query{std::vector<double>(300, 0.5), std::vector<double>(300, 1), {}};
      query.key[place] = bad;
      bool dropped[300] = {};
      dropped[7] = true;
      for_each_form<float>(query, drop_where(Tensor4<bool>(dropped, {1, 1, 1, 300})),
                           [&](const auto& r, Index i) {
                             EXPECT_TRUE(std::isnan(r.out(0, 0, i, 0)));
                             EXPECT_TRUE(std::isnan(r.log_sum_exp(0, 0, i, 0)));
                             for (Index j = 0; j < 300; ++j) {
                               const float weight = r.weights(0, 0, i, j);
                               EXPECT_TRUE(j == 7 ? same_bits(weight, 0.0f) : std::isnan(weight))
                                   << "key " << j << ": " << weight;
                             }
                           });
    }
  }
}

TEST(NotFinite, InfiniteValuesFollowTheirWeight) {
  const double inf = infinity<double>(), nan = quiet_nan<double>();
  struct Case {
    std::vector<double> value;
    double expected;
  };
  for (const Case& c : std::vector<Case>{{{1, inf, 2}, inf},
                                         {{1, -inf, 2}, -inf},
                                         {{inf, 5, inf}, inf},
                                         {{inf, 5, -inf}, nan},
                                         {{1, nan, 2}, nan},
                                         {{inf, nan, -inf}, nan}}) {
    const OneQuery query{{0.25, 0, 0.5}, c.value, {}};
    for_each_form<float>(query, no_mask(), [&](const auto& r, Index i) {
      const double out = static_cast<double>(r.out(0, 0, i, 0));
      EXPECT_TRUE(out == c.expected || (std::isnan(out) && std::isnan(c.expected))) << out;
      EXPECT_TRUE(std::isfinite(r.log_sum_exp(0, 0, i, 0)));
    });
    // The same with splits of keys in between.
    OneQuery far = query;
    far.key.insert(far.key.begin() + 1, 9000, -0.5);
    far.value.insert(far.value.begin() + 1, 9000, 1);
    const double out = static_cast<double>(far.run<float>(1).out(0, 0, 0, 0));
    EXPECT_TRUE(out == c.expected || (std::isnan(out) && std::isnan(c.expected))) << out;
  }
}

TEST(NotFinite, OneColumnDoesNotReachTheOthers) {
  for (const Index queries : {2, 20}) {
    const Sizes sizes{1, 1, 1, 1, queries, 40, 3, 37};
    Inputs<float> in(sizes, 76);
    const auto clean = run(in, no_mask());
    in.v(0, 0, 11, 7) = quiet_nan<float>();
    in.v(0, 0, 12, 36) = infinity<float>();
    const auto results = run(in, no_mask());
    test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      const float out = results.out(b, h, i, d);
      if (d == 7) {
        EXPECT_TRUE(std::isnan(out));
      } else if (d == 36) {
        EXPECT_EQ(out, infinity<float>());
      } else {
        EXPECT_TRUE(same_bits(out, clean.out(b, h, i, d)));
      }
    });
  }
}

// ---- Huge and tiny numbers.

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
        for_each_form<T>(query, no_mask(), [&](const auto& r, Index i) {
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
        EXPECT_LE(worst, 1) << detail::name_of(set) << ", " << queries << " queries";
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
    for_each_form<float>(OneQuery{c.key, {1, 3}, {}}, no_mask(), [&](const auto& r, Index i) {
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
      for_each_form<float>(query, no_mask(),
                           [](const auto& r, Index i) { EXPECT_NEAR(r.out(0, 0, i, 0), 3, 1e-6); });
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
    for_each_form<float>(query, add_bias(view), [&](const auto& r, Index i) {
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
  for_each_form<half>(query, add_bias(Tensor4<const half>(lows, {1, 1, 1, 2})),
                      [](const auto& r, Index i) {
                        EXPECT_LT(static_cast<float>(r.out(0, 0, i, 0)), 1e-6f);
                        EXPECT_EQ(r.weights(0, 0, i, 1), 1);
                      });
}

TEST(HugeNumbers, SinksOfAnySize) {
  const std::vector<double> huge = {1e30}, low = {-1e30}, four = {std::log(4.0)};
  OneQuery query{{0, 0, 0, 0}, {1, 1, 1, 1}, {}};
  query.options.sinks = huge;
  for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_EQ(r.out(0, 0, i, 0), 0);
    EXPECT_EQ(r.log_sum_exp(0, 0, i, 0), 1e30f);
  });
  query.options.sinks = low;
  for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_EQ(r.out(0, 0, i, 0), 1);
    EXPECT_NEAR(r.log_sum_exp(0, 0, i, 0), std::log(4.0), 1e-6);
  });
  query.options.sinks = four;
  for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_NEAR(r.out(0, 0, i, 0), 0.5, 1e-6);
    EXPECT_NEAR(r.weights(0, 0, i, 2), 0.125, 1e-7);
    EXPECT_NEAR(r.log_sum_exp(0, 0, i, 0), std::log(8.0), 1e-6);
  });
}

TEST(HugeNumbers, ValuesNearTheLargestAreSafe) {
  // 2^8 * Sk * max|V| is finite: 128 keys of 2^112, whatever the order of the maximum.
  OneQuery query{std::vector<double>(128), std::vector<double>(128, 0x1p112), {}};
  for (std::size_t j = 0; j < 128; ++j) query.key[j] = 0.04 * static_cast<double>(j);
  for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
    EXPECT_NEAR(static_cast<double>(r.out(0, 0, i, 0)), 0x1p112, 0x1p112 * 1e-5);
  });
}

/// Every bit pattern of a 16-bit type.
template <class T>
T pattern(Index bits) {
  const auto raw = static_cast<std::uint16_t>(bits);
  T value;
  std::memcpy(static_cast<void*>(&value), &raw, sizeof value);
  return value;
}

template <class T>
class EveryNumberOf : public ::testing::Test {};
using SixteenBitTypes = ::testing::Types<half, bfloat16>;
TYPED_TEST_SUITE(EveryNumberOf, SixteenBitTypes, test::TypeNames);

// One key: out is v itself, its subnormals and infinities included.
TYPED_TEST(EveryNumberOf, PassesThroughV) {
  using T = TypeParam;
  const Index count = 65536;
  for (const InstructionSet set : test::instruction_sets()) {
    for (const Index rows : {1, 16}) {
      for (const test::Layout layout : {test::Layout::contiguous, test::Layout::inner_stride}) {
        TestTensor<T> q({1, 1, rows, 1}), k({1, 1, 1, 1}), v({1, 1, 1, count}, layout),
            out({1, 1, rows, count});
        q.fill_value(T(0.0f));
        k.fill_value(T(0.0f));
        v.fill([](Index, Index, Index, Index d) { return pattern<T>(d); });
        AttentionOptions options;
        options.instruction_set = set;
        scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), no_mask(), options);
        Index wrong = 0;
        for (Index d = 0; d < count; ++d) {
          const T expected = pattern<T>(d), actual = out(0, 0, rows - 1, d);
          const bool same = expected != expected ? actual != actual : expected == actual;
          wrong += !same;
        }
        EXPECT_EQ(wrong, 0) << detail::name_of(set) << ", rows " << rows;
      }
    }
  }
}

// One key: the log-sum-exp is the score q * k, exactly k where q = 1, and q where k = 1.
TYPED_TEST(EveryNumberOf, EntersTheScores) {
  using T = TypeParam;
  const Index count = 65536;
  AttentionOptions options;
  options.scale = 1;
  for (const InstructionSet set : test::instruction_sets()) {
    options.instruction_set = set;
    TestTensor<T> one({1, 1, 1, 1}), out({1, 1, count, 1}), out_of_batch({count, 1, 1, 1});
    TestTensor<T> many({1, 1, count, 1});
    TestTensor<float> of_query({1, 1, count, 1}), of_key({count, 1, 1, 1});
    one.fill_value(T(1.0f));
    many.fill([](Index, Index, Index i, Index) { return pattern<T>(i); });
    const Tensor4<const T> batches(many.view().data(), {count, 1, 1, 1});
    scaled_dot_product_attention(many.view(), one.view(), one.view(), out.view(), no_mask(),
                                 options, {{}, of_query.view()});
    const Tensor4<const T> ones(one.view().data(), {count, 1, 1, 1}, Stride4{0, 0, 0, 0});
    scaled_dot_product_attention(ones, batches, ones, out_of_batch.view(), no_mask(), options,
                                 {{}, of_key.view()});
    Index wrong = 0;
    for (Index i = 0; i < count; ++i) {
      const float expected = static_cast<float>(pattern<T>(i));
      for (const float actual : {of_query(0, 0, i, 0), of_key(i, 0, 0, 0)}) {
        const bool is_nan = std::isnan(expected) || expected == infinity<float>();
        wrong += is_nan ? !std::isnan(actual) : actual != expected;
      }
    }
    EXPECT_EQ(wrong, 0) << detail::name_of(set);
  }
}

TEST(TinyNumbers, SubnormalsAreKept) {
  const double tiny = 0x1p-140;  // subnormal in float
  const OneQuery query{{0, 0}, {tiny, 3 * tiny}, {}};
  for_each_form<float>(query, no_mask(),
                       [&](const auto& r, Index i) { EXPECT_EQ(r.out(0, 0, i, 0), 2 * tiny); });
  // In the scores: the product with a large q is an ordinary number.
  Inputs<float> in(Sizes{1, 1, 1, 1, 20, 2, 1, 1});
  in.q.fill_value(0x1p100f);
  in.k.fill([&](Index, Index, Index j, Index) { return j == 0 ? 0 : static_cast<float>(tiny); });
  in.v.fill([&](Index, Index, Index j, Index) { return j == 0 ? 1 : 3; });
  AttentionOptions options;
  options.scale = 0x1p40;
  const double weight = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(run(in, no_mask(), options).out(0, 0, 19, 0), 1 + 2 * weight, 1e-6);
}

// A weight of an absent key is +0, not a tiny number that makes every product slow.
TEST(TinyNumbers, MaskedWeightsAreExactlyZero) {
  const Sizes sizes{1, 1, 1, 1, 20, 200, 4, 3};
  const Inputs<float> in(sizes, 77);
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    const auto r = run(in, keep_if([](ScorePosition at) { return at.key % 50 == 3; }), options);
    test::for_each_index(sizes.scores(), [&](Index b, Index h, Index i, Index j) {
      if (j % 50 != 3) {
        EXPECT_TRUE(same_bits(r.weights(b, h, i, j), 0.0f));
      }
    });
  }
}

}  // namespace
}  // namespace attn

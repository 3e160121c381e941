// What is absent is never seen, whatever it holds; rows without keys: lines 9 and 10 of
// the contract.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention_special_test/one_query.hpp"
#include "attn/attention.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::half;
using test::infinity;
using test::Inputs;
using test::Kind;
using test::MaskData;
using test::OneQuery;
using test::quiet_nan;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

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
    const auto clean = test::run(in, kind.mask, options);
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
        const auto results = test::run(poisoned, kind.mask, options);
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
      const auto expected = test::run(in, add_bias(bias.view()) & keep_where(data.full.view()));
      const auto after = test::run(in, add_bias(poisoned.view()) & keep_where(data.full.view()));
      const auto before = test::run(in, keep_where(data.full.view()) & add_bias(poisoned.view()));
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
  test::for_each_form<float>(query, add_bias(bias) & revive, [](const auto& r, Index i) {
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
    test::for_each_form<float>(query, no_mask(), [](const auto& r, Index i) {
      EXPECT_EQ(r.out(0, 0, i, 0), 2);
      EXPECT_TRUE(same_bits(r.weights(0, 0, i, 1), 0.0f));
    });
  }
  const OneQuery query{{1, 2, 1}, {1, quiet_nan<double>(), 3}, {}};
  test::for_each_form<double>(query, modify_score([](double score, ScorePosition at) {
                                return at.key == 1 ? -infinity<double>() : score;
                              }),
                              [](const auto& r, Index i) { EXPECT_EQ(r.out(0, 0, i, 0), 2); });
  // All of them.
  const OneQuery none{{-infinity<double>(), -3e38}, {quiet_nan<double>(), 5}, {}};
  OneQuery doubled = none;
  doubled.options.scale = 2;
  test::for_each_form<float>(doubled, no_mask(), [](const auto& r, Index i) {
    EXPECT_TRUE(same_bits(r.out(0, 0, i, 0), 0.0f));
    EXPECT_EQ(r.log_sum_exp(0, 0, i, 0), -infinity<float>());
  });
}

// A softcap makes an infinite score finite: the key is there.
TEST(AbsentKeys, ASoftcapBringsInfiniteScoresBack) {
  OneQuery query{{-infinity<double>(), infinity<double>()}, {0, 1}, {}};
  query.options.softcap = 0.5;
  const double expected = 1 / (1 + std::exp(-1.0));
  test::for_each_form<float>(query, no_mask(), [&](const auto& r, Index i) {
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
        const auto r = test::run(in, mask, options);
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

}  // namespace
}  // namespace attn

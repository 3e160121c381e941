// The state of a softmax that sees its scores tile by tile, by itself.
#include "attn/config.hpp"

#include "attn/detail/forms/online_softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/detail/kernels/micro_kernels.hpp"
#include "support/oracle.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using detail::OnlineSoftmax;

const double kNone = -std::numeric_limits<double>::infinity();

/// A state of `rows` rows with memory of its own, in either form.
struct State {
  std::vector<double> max, sum, correction, out;
  OnlineSoftmax<double> softmax;

  State(bool rows_are_lanes, Index rows, Index dim, InstructionSet set) {
    softmax.kernels = &detail::kernels<double>(set);
    const Index lanes = softmax.kernels->lanes;
    softmax.rows_are_lanes = rows_are_lanes;
    softmax.rows = rows_are_lanes ? detail::round_up(rows, lanes) : rows;
    softmax.dim = dim;
    softmax.out_stride = rows_are_lanes ? softmax.rows : detail::round_up(dim, lanes);
    const auto padded_rows = static_cast<std::size_t>(softmax.rows);
    max.resize(padded_rows, 99);
    sum.resize(padded_rows, 99);
    correction.resize(padded_rows, 99);
    out.resize(static_cast<std::size_t>(softmax.lines() * softmax.out_stride), 99);
    softmax.max = max.data();
    softmax.sum = sum.data();
    softmax.correction = correction.data();
    softmax.out = out.data();
  }
  State(const State&) = delete;

  /// One tile: score(row, key) for keys [begin, end), and values value(key, d).
  template <class Score, class Value>
  bool update(Index real_rows, Index begin, Index end, const Score& score, const Value& value) {
    const Index keys = end - begin, lanes = softmax.kernels->lanes;
    const Index padded_keys = detail::round_up(keys, lanes);
    const Index stride = softmax.rows_are_lanes ? softmax.rows : padded_keys;
    std::vector<double> scores(
        static_cast<std::size_t>(softmax.rows_are_lanes ? keys * stride : softmax.rows * stride),
        kNone);
    for (Index row = 0; row < real_rows; ++row) {
      for (Index j = 0; j < keys; ++j) {
        const Index at = softmax.rows_are_lanes ? j * stride + row : row * stride + j;
        scores[static_cast<std::size_t>(at)] = score(row, begin + j);
      }
    }
    std::vector<double> values;
    for (Index j = 0; j < keys; ++j) {
      for (Index d = 0; d < softmax.dim; ++d) values.push_back(value(begin + j, d));
    }
    const bool rescale =
        softmax.update_weights(scores.data(), softmax.rows_are_lanes ? keys : padded_keys, stride);
    if (softmax.rows_are_lanes) {
      std::vector<const void*> rows;
      for (Index j = 0; j < keys; ++j) rows.push_back(values.data() + j * softmax.dim);
      softmax.add_values(rows.data(), keys, scores.data(), stride, rescale);
    } else {
      const Index bytes = softmax.dim * static_cast<Index>(sizeof(double));
      softmax.add_values(detail::RowRun{values.data(), bytes, keys, 0, 0},
                         *softmax.kernels->few_rows, scores.data(), stride, rescale);
    }
    return rescale;
  }
};

double score_of(Index row, Index key) {
  return 30 * test::uniform(7, static_cast<std::uint64_t>(100 * row + key));
}
double value_of(Index key, Index d) {
  return test::uniform(8, static_cast<std::uint64_t>(100 * key + d));
}

/// Calls f(rows_are_lanes, set).
template <class F>
void for_each_form(const F& f) {
  for (const InstructionSet set : test::instruction_sets()) {
    for (const bool rows_are_lanes : {false, true}) {
      SCOPED_TRACE(std::string(detail::name_of(set)) + (rows_are_lanes ? ", row lanes" : ""));
      f(rows_are_lanes, set);
    }
  }
}

TEST(OnlineSoftmax, TilesAddUpToTheSoftmax) {
  const Index rows = 5, keys = 23, dim = 7;
  for_each_form([&](bool rows_are_lanes, InstructionSet set) {
    for (const std::vector<Index>& ends :
         std::vector<std::vector<Index>>{{23}, {1, 23}, {22, 23}, {8, 16, 23}, {3, 5, 11, 23}}) {
      for (const bool has_sink : {false, true}) {
        State state(rows_are_lanes, rows, dim, set);
        const auto sink = [&](Index row) {
          return has_sink ? 2.0 - static_cast<double>(row) : kNone;
        };
        state.softmax.reset(rows, sink);
        Index begin = 0;
        for (const Index end : ends) {
          state.update(rows, begin, end, score_of, value_of);
          begin = end;
        }
        EXPECT_TRUE(state.softmax.is_finite());
        state.softmax.normalize();
        for (Index row = 0; row < rows; ++row) {
          long double denominator = has_sink ? std::exp(2.0L - static_cast<long double>(row)) : 0;
          for (Index j = 0; j < keys; ++j) {
            denominator += std::exp(static_cast<long double>(score_of(row, j)));
          }
          EXPECT_NEAR(state.softmax.log_sum_exp(row), static_cast<double>(std::log(denominator)),
                      1e-13);
          for (Index d = 0; d < dim; ++d) {
            long double expected = 0;
            for (Index j = 0; j < keys; ++j) {
              expected += std::exp(static_cast<long double>(score_of(row, j))) / denominator *
                          static_cast<long double>(value_of(j, d));
            }
            EXPECT_NEAR(state.softmax.value(row, d), static_cast<double>(expected), 1e-14);
          }
        }
      }
    }
  });
}

TEST(OnlineSoftmax, RescalesOnlyWhenTheMaximumHasGrownMuch) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 1, 1, set);
    state.softmax.reset(1, [](Index) { return kNone; });
    const auto one = [](Index, Index) { return 1.0; };
    const auto step = [&](double s) {
      return state.update(
          1, 0, 1, [s](Index, Index) { return s; }, one);
    };
    step(10);
    EXPECT_EQ(state.max[0], 10);
    EXPECT_FALSE(step(9));
    EXPECT_FALSE(step(10 + 5.5)) << "less than 8 ln 2";
    EXPECT_EQ(state.max[0], 10);
    EXPECT_TRUE(step(10 + 5.6));
    EXPECT_EQ(state.max[0], 15.6);
    EXPECT_NEAR(state.softmax.log_sum_exp(0),
                std::log(std::exp(10) + std::exp(9) + std::exp(15.5) + std::exp(15.6)), 1e-13);
    state.softmax.normalize();
    EXPECT_NEAR(state.softmax.value(0, 0), 1, 1e-14);
  });
}

TEST(OnlineSoftmax, ARowWithoutKeysStaysEmpty) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 3, 2, set);
    state.softmax.reset(3, [](Index row) { return row == 2 ? 1.5 : kNone; });
    // Row 1 sees a key; rows 0 and 2 see none.
    state.update(
        3, 0, 4, [](Index row, Index key) { return row == 1 && key == 2 ? 0.25 : kNone; },
        [](Index key, Index) { return static_cast<double>(key); });
    state.softmax.normalize();
    EXPECT_TRUE(state.softmax.is_empty(0));
    EXPECT_FALSE(state.softmax.is_empty(1));
    EXPECT_FALSE(state.softmax.is_empty(2));
    EXPECT_EQ(state.softmax.log_sum_exp(0), kNone);
    EXPECT_EQ(state.softmax.log_sum_exp(1), 0.25);
    EXPECT_EQ(state.softmax.log_sum_exp(2), 1.5);
    EXPECT_TRUE(test::same_bits(state.softmax.value(0, 1), 0.0));
    EXPECT_EQ(state.softmax.value(1, 1), 2);
    EXPECT_TRUE(test::same_bits(state.softmax.value(2, 0), 0.0));
  });
}

TEST(OnlineSoftmax, NanIsNotEmpty) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 1, 1, set);
    state.softmax.reset(1, [](Index) { return kNone; });
    const double nan = test::quiet_nan<double>();
    state.update(
        1, 0, 2, [nan](Index, Index key) { return key == 0 ? nan : kNone; },
        [](Index, Index) { return 1.0; });
    EXPECT_FALSE(state.softmax.is_finite());
    EXPECT_FALSE(state.softmax.is_empty(0));
    EXPECT_TRUE(std::isnan(state.softmax.log_sum_exp(0)));
  });
}

TEST(MergeStates, SplitsAddUpToTheWhole) {
  const Index dim = 5, splits = 4;
  for (const InstructionSet set : test::instruction_sets()) {
    // Split 1 saw no key, split 2 is a sink without values.
    const double max[splits] = {3, kNone, 4, -2}, sum[splits] = {1.5, 0, 1, 2.25};
    std::vector<std::vector<double>> outs;
    for (Index s = 0; s < splits; ++s) {
      outs.emplace_back(16, s == 1 ? test::quiet_nan<double>() : 0.0);
      if (s == 1) continue;
      for (Index d = 0; d < dim; ++d) outs.back()[static_cast<std::size_t>(d)] = value_of(s, d);
    }
    const double* const parts[splits] = {outs[0].data(), outs[1].data(), nullptr, outs[3].data()};
    double merged_max = 0, merged_sum = 0, out[16] = {};
    detail::merge_states(detail::kernels<double>(set), splits, max, sum, parts, dim, merged_max,
                         merged_sum, out);
    EXPECT_EQ(merged_max, 4);
    EXPECT_NEAR(merged_sum, 1.5 * std::exp(-1) + 1 + 2.25 * std::exp(-6), 1e-15);
    for (Index d = 0; d < dim; ++d) {
      EXPECT_NEAR(out[d], std::exp(-1) * value_of(0, d) + std::exp(-6) * value_of(3, d), 1e-15);
    }
  }
}

TEST(MergeStates, OfNothingIsNothing) {
  const double max[2] = {kNone, kNone}, sum[2] = {0, 0}, garbage = test::quiet_nan<double>();
  const double* const parts[2] = {&garbage, &garbage};
  double merged_max = 0, merged_sum = 1, out[16] = {};
  detail::merge_states(detail::kernels<double>(InstructionSet::best), 2, max, sum, parts, 1,
                       merged_max, merged_sum, out);
  EXPECT_EQ(merged_max, kNone);
  EXPECT_TRUE(test::same_bits(merged_sum, 0.0));
  EXPECT_TRUE(test::same_bits(out[0], 0.0));
}

}  // namespace
}  // namespace attn

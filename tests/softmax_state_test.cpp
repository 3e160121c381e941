// The state of a softmax that sees its scores tile by tile, by itself.
#include "attn/config.hpp"

#include "attn/detail/forms/softmax_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/detail/base/rounding.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "support/oracle.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

const double kNone = -std::numeric_limits<double>::infinity();

/// Rows with memory of their own, in either arrangement of lanes, and the kernels that update them.
struct State {
  const detail::KernelTable<double>& kernels;
  bool rows_are_lanes;
  Index rows, real_rows, dim, out_stride;
  std::vector<double> max, sum, factors, out;
  detail::SoftmaxState<double> softmax;

  State(bool lanes_are_rows, Index count, Index dims, InstructionSet set)
      : kernels(detail::kernels<double>(set)),
        rows_are_lanes(lanes_are_rows),
        rows(rows_are_lanes ? detail::round_up(count, kernels.lanes) : count),
        real_rows(count),
        dim(dims),
        out_stride(rows_are_lanes ? rows : detail::round_up(dim, kernels.lanes)) {
    max.resize(static_cast<std::size_t>(rows), 99);
    sum.resize(static_cast<std::size_t>(rows), 99);
    factors.resize(static_cast<std::size_t>(rows), 99);
    out.resize(static_cast<std::size_t>((rows_are_lanes ? dim : rows) * out_stride), 0);
    softmax = {max.data(), sum.data(), factors.data()};
  }
  State(const State&) = delete;

  template <class Sink>
  void reset(const Sink& sink) {
    softmax.reset(rows, real_rows, sink);
  }
  double& value(Index row, Index d) {
    return out[static_cast<std::size_t>(rows_are_lanes ? d * out_stride + row
                                                       : row * out_stride + d)];
  }
  bool is_finite() const {
    return kernels.all_finite(out.data(), rows_are_lanes ? dim : rows, out_stride, out_stride);
  }
  void normalize() {
    softmax.set_divisors(rows);
    if (rows_are_lanes) {
      kernels.row_divide(out.data(), dim, rows, out_stride, factors.data());
    } else {
      kernels.dim_divide(out.data(), rows, out_stride, out_stride, factors.data());
    }
  }

  /// One tile: score(row, key) for keys [begin, end), and values value(key, d).
  template <class Score, class Value>
  bool update(Index begin, Index end, const Score& score, const Value& value_of) {
    const Index keys = end - begin, padded_keys = detail::round_up(keys, kernels.lanes);
    const Index stride = rows_are_lanes ? rows : padded_keys;
    std::vector<double> scores(
        static_cast<std::size_t>(rows_are_lanes ? keys * stride : rows * stride), kNone);
    for (Index row = 0; row < real_rows; ++row) {
      for (Index j = 0; j < keys; ++j) {
        const Index at = rows_are_lanes ? j * stride + row : row * stride + j;
        scores[static_cast<std::size_t>(at)] = score(row, begin + j);
      }
    }
    std::vector<double> values;
    for (Index j = 0; j < keys; ++j) {
      for (Index d = 0; d < dim; ++d) values.push_back(value_of(begin + j, d));
    }
    const auto step = rows_are_lanes ? kernels.row_softmax : kernels.dim_softmax;
    const bool rescale = step(scores.data(), rows_are_lanes ? keys : padded_keys, rows, stride,
                              max.data(), sum.data(), factors.data());
    const double* const correction = rescale ? factors.data() : nullptr;
    if (rows_are_lanes) {
      std::vector<const void*> addresses;
      for (Index j = 0; j < keys; ++j) addresses.push_back(values.data() + j * dim);
      kernels.row_accumulate(addresses.data(), keys, dim, scores.data(), stride, rows, correction,
                             out.data(), out_stride, {});
    } else {
      const Index bytes = dim * static_cast<Index>(sizeof(double));
      kernels.few_rows->accumulate(detail::RowRun{values.data(), bytes, keys, 0, 0}, dim,
                                   scores.data(), stride, rows, correction, out.data(), out_stride);
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
      SCOPED_TRACE(std::string(name_of(set)) + (rows_are_lanes ? ", row lanes" : ""));
      f(rows_are_lanes, set);
    }
  }
}

TEST(SoftmaxState, TilesAddUpToTheSoftmax) {
  const Index rows = 5, keys = 23, dim = 7;
  for_each_form([&](bool rows_are_lanes, InstructionSet set) {
    for (const std::vector<Index>& ends :
         std::vector<std::vector<Index>>{{23}, {1, 23}, {22, 23}, {8, 16, 23}, {3, 5, 11, 23}}) {
      for (const bool has_sink : {false, true}) {
        State state(rows_are_lanes, rows, dim, set);
        const auto sink = [&](Index row) {
          return has_sink ? 2.0 - static_cast<double>(row) : kNone;
        };
        state.reset(sink);
        Index begin = 0;
        for (const Index end : ends) {
          state.update(begin, end, score_of, value_of);
          begin = end;
        }
        EXPECT_TRUE(state.is_finite());
        state.normalize();
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
            EXPECT_NEAR(state.value(row, d), static_cast<double>(expected), 1e-14);
          }
        }
      }
    }
  });
}

TEST(SoftmaxState, RescalesOnlyWhenTheMaximumHasGrownMuch) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 1, 1, set);
    state.reset([](Index) { return kNone; });
    const auto one = [](Index, Index) { return 1.0; };
    const auto step = [&](double s) {
      return state.update(
          0, 1, [s](Index, Index) { return s; }, one);
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
    state.normalize();
    EXPECT_NEAR(state.value(0, 0), 1, 1e-14);
  });
}

TEST(SoftmaxState, ARowWithoutKeysStaysEmpty) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 3, 2, set);
    state.reset([](Index row) { return row == 2 ? 1.5 : kNone; });
    // Row 1 sees a key; rows 0 and 2 see none.
    state.update(
        0, 4, [](Index row, Index key) { return row == 1 && key == 2 ? 0.25 : kNone; },
        [](Index key, Index) { return static_cast<double>(key); });
    state.normalize();
    EXPECT_TRUE(state.softmax.is_empty(0));
    EXPECT_FALSE(state.softmax.is_empty(1));
    EXPECT_FALSE(state.softmax.is_empty(2));
    EXPECT_EQ(state.softmax.log_sum_exp(0), kNone);
    EXPECT_EQ(state.softmax.log_sum_exp(1), 0.25);
    EXPECT_EQ(state.softmax.log_sum_exp(2), 1.5);
    EXPECT_TRUE(test::same_bits(state.value(0, 1), 0.0));
    EXPECT_EQ(state.value(1, 1), 2);
    EXPECT_TRUE(test::same_bits(state.value(2, 0), 0.0));
  });
}

TEST(SoftmaxState, NanIsNotEmpty) {
  for_each_form([](bool rows_are_lanes, InstructionSet set) {
    State state(rows_are_lanes, 1, 1, set);
    state.reset([](Index) { return kNone; });
    const double nan = test::quiet_nan<double>();
    state.update(
        0, 2, [nan](Index, Index key) { return key == 0 ? nan : kNone; },
        [](Index, Index) { return 1.0; });
    EXPECT_FALSE(state.is_finite());
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

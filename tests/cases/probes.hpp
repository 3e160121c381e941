// tests/cases/probes.hpp - small inputs whose right answer shows what was computed.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// How far a mean of numbers with equal scores may be off, relative to the largest of them: the
/// exponential of 0 may be off by 4 epsilons, above and below the fraction line; division and
/// rounding take the other two.
template <class T>
double mean_tolerance() {
  return 10 * static_cast<double>(epsilon<AccumulationType<T>>()) +
         static_cast<double>(epsilon<T>()) / 2;
}

/// q = 0, so that all keys which a query sees weigh the same, and v(j) = value(j): an output is the
/// mean of the values of the keys that its query sees.
template <class T = float>
struct MeanProbe {
  TestTensor<T> q, k, v;

  template <class F>
  MeanProbe(Index queries, Index keys, const F& value, Index heads = 1, Index kv_heads = 1)
      : q({1, heads, queries, 1}), k({1, kv_heads, keys, 1}), v({1, kv_heads, keys, 1}) {
    q.fill_value(to<T>(0));
    k.fill_uniform(5);
    v.fill([&](Index, Index, Index j, Index) { return to<T>(value(j)); });
  }

  /// The outputs, head by head.
  std::vector<double> outputs(const AnyMask& mask, const AttentionOptions& options = {},
                              Want want = Want::output) const {
    const auto result =
        scaled_dot_product_attention(q.view(), k.view(), v.view(), mask, options, want);
    std::vector<double> rows;
    for_each_index(result.output.shape(), [&](Index b, Index h, Index i, Index d) {
      rows.push_back(static_cast<double>(result.output(b, h, i, d)));
    });
    return rows;
  }
};

/// v(j) = 2^j: an output times the number of keys in it names the keys.
template <class T = float>
MeanProbe<T> bits_probe(Index queries, Index keys, Index heads = 1, Index kv_heads = 1) {
  return MeanProbe<T>(
      queries, keys, [](Index j) { return std::exp2(static_cast<double>(j)); }, heads, kv_heads);
}

/// Every row against its right answer, relative to the largest magnitude it is made of.
template <class T = float>
void expect_means(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t row = 0; row < actual.size(); ++row) {
    EXPECT_NEAR(actual[row], expected[row], mean_tolerance<T>() * std::abs(expected[row]))
        << "row " << row;
  }
}

}  // namespace test
}  // namespace attn

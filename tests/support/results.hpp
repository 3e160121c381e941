// tests/support/results.hpp - everything that one call writes, for the tests that compare calls.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "attn/attention.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {

/// The outputs of a call; poison until it has run.
template <class T>
struct Results {
  using A = AccumulationType<T>;
  TestTensor<T> out;
  TestTensor<A> weights, log_sum_exp;

  Results(const Shape4& out_shape, const Shape4& scores, Layout layout = Layout::contiguous)
      : out(out_shape, layout),
        weights(scores, layout),
        log_sum_exp({scores.batch, scores.heads, scores.length, 1}, layout) {}
  explicit Results(const Sizes& sizes, Layout layout = Layout::contiguous)
      : Results(sizes.out(), sizes.scores(), layout) {}

  AttentionOutputs<A> extra() { return {weights.view(), log_sum_exp.view()}; }
};

/// One call of scaled_dot_product_attention; the outputs have the given layout.
template <class T, class M = NoMask>
Results<T> run(const Inputs<T>& in, const M& mask = M(), const AttentionOptions& options = {},
               Layout layout = Layout::contiguous) {
  const Shape4 q = in.q.shape();
  Results<T> results({q.batch, q.heads, q.length, in.v.shape().dim},
                     {q.batch, q.heads, q.length, in.k.shape().length}, layout);
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out.view(), mask,
                               options, results.extra());
  return results;
}

/// Every bit of both is the same.
template <class T>
void expect_same(const Results<T>& a, const Results<T>& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out.view(), b.out.view())) << "out: " << what;
  EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view())) << "weights: " << what;
  EXPECT_TRUE(same_bits(a.log_sum_exp.view(), b.log_sum_exp.view())) << "log_sum_exp: " << what;
}

}  // namespace test
}  // namespace attn

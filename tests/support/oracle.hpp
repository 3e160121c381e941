// tests/support/oracle.hpp - a call of attention judged against attention by the book.
//
// The bar. Let E be the largest error of the plain computation: the reference in the call's own
// accumulation type, against the reference in a wider type (double for float, long double for
// double). The library may be off by 2 E + floor, and by one rounding to the output's type. The
// floor serves the small calls, where a plain loop may be exact by luck:
//
//   out      eps * max|v| * weight_sum * (6 + 3 S)     S = max |live score|
//   weights  eps * max weight * (6 + 3 S)              weight_sum: 1 / (1 - p) under dropout
//   lse      eps * (6 + 3 S + log Sk)
//
// with eps = 2^-23 or 2^-52: a score carries three roundings of relative size eps (the last sum,
// scale, bias), which move the weight by as much as 3 eps S; e^-x (4 + x) eps <= 4 eps is what the
// contract grants the exponential, and two more stand for the denominator and the product.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <type_traits>
#include <vector>

#include "attn/attention.hpp"
#include "attn/reference.hpp"
#include "support/formula.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// The sizes of a call.
struct Sizes {
  Index batch = 1, query_heads = 1, key_heads = 1, value_heads = 1;
  Index query_length = 1, key_length = 1, key_dim = 1, value_dim = 1;

  Shape4 q() const { return {batch, query_heads, query_length, key_dim}; }
  Shape4 k() const { return {batch, key_heads, key_length, key_dim}; }
  Shape4 v() const { return {batch, value_heads, key_length, value_dim}; }
  Shape4 out() const { return {batch, query_heads, query_length, value_dim}; }
  Shape4 scores() const { return {batch, query_heads, query_length, key_length}; }
  Shape4 rows() const { return {batch, query_heads, query_length, 1}; }
};

inline std::ostream& operator<<(std::ostream& stream, const Sizes& s) {
  return stream << "B " << s.batch << ", Hq " << s.query_heads << ", Hk " << s.key_heads << ", Hv "
                << s.value_heads << ", Sq " << s.query_length << ", Sk " << s.key_length << ", Dk "
                << s.key_dim << ", Dv " << s.value_dim;
}

/// q, k and v of one call.
template <class Q, class K = Q, class V = K>
struct Inputs {
  TestTensor<Q> q;
  TestTensor<K> k;
  TestTensor<V> v;

  explicit Inputs(const Sizes& sizes, std::uint64_t seed = 1, Layout layout = Layout::contiguous)
      : Inputs(sizes, seed, layout, layout, layout) {}
  Inputs(const Sizes& sizes, std::uint64_t seed, Layout q_layout, Layout k_layout, Layout v_layout)
      : q(sizes.q(), q_layout), k(sizes.k(), k_layout), v(sizes.v(), v_layout) {
    q.fill_uniform(3 * seed, 3);  // with k below 1: weights that differ much, but none is lost
    k.fill_uniform(3 * seed + 1);
    v.fill_uniform(3 * seed + 2);
  }
};

/// What attention by the book gives in the type A.
template <class A>
struct Answer {
  Tensor4Buffer<A> out, weights, log_sum_exp;
  long double largest_score = 0;  // of the finite ones
};

/// A copy in double, which holds every element type exactly: one reference serves all types.
template <class T>
Tensor4Buffer<double> in_double(Tensor4<T> tensor) {
  Tensor4Buffer<double> copy(tensor.shape());
  for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    copy(b, h, i, d) = static_cast<double>(widen(std::remove_const_t<T>(tensor(b, h, i, d))));
  });
  return copy;
}

template <class A>
Answer<A> answer_in(const Tensor4Buffer<double>& q, const Tensor4Buffer<double>& k,
                    const Tensor4Buffer<double>& v, const Formula& formula,
                    const AttentionOptions& options) {
  const Shape4 rows{q.shape().batch, q.shape().heads, q.shape().length, 1};
  Answer<A> answer;
  for (const double sink : options.sinks) {
    if (std::isfinite(sink)) {
      answer.largest_score =
          (std::max)(answer.largest_score, std::abs(static_cast<long double>(sink)));
    }
  }
  answer.out = Tensor4Buffer<A>({rows.batch, rows.heads, rows.length, v.shape().dim});
  answer.weights = Tensor4Buffer<A>({rows.batch, rows.heads, rows.length, k.shape().length});
  answer.log_sum_exp = Tensor4Buffer<A>(rows);
  reference_attention(
      q.view(), k.view(), v.view(), answer.out.view(),
      [&](Index b, Index h, Index i, Index j) { return formula.allows(b, h, i, j); },
      [&](A score, Index b, Index h, Index i, Index j) {
        const A result = formula.change(score, b, h, i, j);
        if (std::isfinite(result)) {
          answer.largest_score =
              (std::max)(answer.largest_score, std::abs(static_cast<long double>(result)));
        }
        return result;
      },
      options, AttentionOutputs<A>{answer.weights.view(), answer.log_sum_exp.view()});
  return answer;
}

/// The largest difference of two tensors; entries that are not finite must agree.
template <class T, class U>
long double largest_difference(Tensor4<T> actual, Tensor4<U> expected) {
  long double largest = 0;
  for_each_index(expected.shape(), [&](Index b, Index h, Index i, Index d) {
    const long double x = widen(std::remove_const_t<T>(actual(b, h, i, d)));
    const long double y = widen(std::remove_const_t<U>(expected(b, h, i, d)));
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const long double difference = std::abs(x - y);
    // A NaN or an infinity on one side only is an infinite error.
    largest = std::isfinite(difference) ? (std::max)(largest, difference)
                                        : std::numeric_limits<long double>::infinity();
  });
  return largest;
}

template <class T>
long double largest_magnitude(Tensor4<T> tensor) {
  long double largest = 0;
  for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    const long double x = std::abs(widen(std::remove_const_t<T>(tensor(b, h, i, d))));
    if (std::isfinite(x)) largest = (std::max)(largest, x);
  });
  return largest;
}

/// Holds each entry of `actual` to `bar`, and one rounding to its type.
template <class T, class U>
void expect_within(const char* what, Tensor4<T> actual, Tensor4<U> expected, long double bar) {
  using Value = std::remove_const_t<T>;
  ASSERT_EQ(actual.shape(), expected.shape());
  int failures = 0;
  for_each_index(expected.shape(), [&](Index b, Index h, Index i, Index d) {
    const long double x = widen(Value(actual(b, h, i, d)));
    const long double y = widen(std::remove_const_t<U>(expected(b, h, i, d)));
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const long double smallest = widen((std::numeric_limits<Value>::denorm_min)());
    const long double rounding = (std::max)(epsilon<Value>() * (std::abs(y) + bar), smallest) / 2;
    if (!(std::abs(x - y) <= bar + rounding) && ++failures <= 3) {
      ADD_FAILURE() << what << " at (" << b << ", " << h << ", " << i << ", " << d << ") is " << x
                    << ", the reference " << y << ": off by " << std::abs(x - y) << ", allowed "
                    << bar + rounding;
    }
  });
  EXPECT_LE(failures, 3) << "of " << what << " are wrong in all";
}

/// The instruction sets of this machine that have kernels of their own.
inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {InstructionSet::generic};
  for (const InstructionSet set :
       {InstructionSet::avx2, InstructionSet::avx512, InstructionSet::neon}) {
    if (attn::detail::is_available(set, active_instruction_set())) sets.push_back(set);
  }
  return sets;
}

/// Attention by the book for one call, to which any number of runs are held. `Out` is out's type.
template <class Out, class Q, class K, class V>
class Expected {
 public:
  using A = AccumulationType<Q, K, V, Out>;

  Expected(const Inputs<Q, K, V>& in, const Formula& formula, const AttentionOptions& options)
      : in_(in), formula_(formula), options_(options) {
    const Tensor4Buffer<double> q = in_double(in.q.view()), k = in_double(in.k.view()),
                                v = in_double(in.v.view());
    exact_ = answer_in<Wide>(q, k, v, formula, options);
    const Answer<A> plain = answer_in<A>(q, k, v, formula, options);

    const long double roundings = epsilon<A>() * (6 + 3 * exact_.largest_score);
    const long double p = static_cast<long double>(options.dropout.probability);
    const long double weight_sum = p < 1 ? 1 / (1 - p) : 1;
    const long double log_keys =
        std::log(static_cast<long double>((std::max)(Index{1}, k.shape().length)));
    out_bar_ = 2 * largest_difference(plain.out.view(), exact_.out.view()) +
               roundings * weight_sum * largest_magnitude(v.view());
    weights_bar_ = 2 * largest_difference(plain.weights.view(), exact_.weights.view()) +
                   roundings * largest_magnitude(exact_.weights.view());
    log_sum_exp_bar_ = 2 * largest_difference(plain.log_sum_exp.view(), exact_.log_sum_exp.view()) +
                       roundings + epsilon<A>() * log_keys;
  }

  /// Runs the call with each instruction set; the outputs have the given layout.
  template <class M>
  void hold(const M& mask, Layout layout = Layout::contiguous) const {
    for (const InstructionSet set : instruction_sets()) {
      SCOPED_TRACE(attn::name_of(set));
      AttentionOptions options = options_;
      options.instruction_set = set;
      run(mask, options, layout);
    }
  }

 private:
  using Wide = std::conditional_t<std::is_same_v<A, float>, double, long double>;

  template <class M>
  void run(const M& mask, const AttentionOptions& options, Layout layout) const {
    TestTensor<Out> out(exact_.out.shape(), layout);
    TestTensor<A> weights(exact_.weights.shape(), layout);
    TestTensor<A> log_sum_exp(exact_.log_sum_exp.shape(), layout);
    scaled_dot_product_attention(in_.q.view(), in_.k.view(), in_.v.view(), out.view(), mask,
                                 options, AttentionOutputs<A>{weights.view(), log_sum_exp.view()});
    expect_within("out", out.view(), exact_.out.view(), out_bar_);
    expect_within("weights", weights.view(), exact_.weights.view(), weights_bar_);
    expect_within("log_sum_exp", log_sum_exp.view(), exact_.log_sum_exp.view(), log_sum_exp_bar_);
    EXPECT_TRUE(out.gaps_are_untouched());
    EXPECT_TRUE(weights.gaps_are_untouched());
    EXPECT_TRUE(log_sum_exp.gaps_are_untouched());

    // An absent key weighs nothing at all, and a row without keys is +0 throughout.
    for_each_index(exact_.weights.shape(), [&](Index b, Index h, Index i, Index j) {
      if (!formula_.allows(b, h, i, j)) {
        EXPECT_TRUE(same_bits(weights(b, h, i, j), A(0)))
            << "weight of the absent key (" << b << ", " << h << ", " << i << ", " << j << ")";
      }
    });
    for_each_index(exact_.out.shape(), [&](Index b, Index h, Index i, Index d) {
      if (exact_.log_sum_exp(b, h, i, 0) == -infinity<Wide>()) {
        EXPECT_TRUE(same_bits(out(b, h, i, d), Out(0)))
            << "out of the empty row (" << b << ", " << h << ", " << i << ")";
      }
    });
  }

  const Inputs<Q, K, V>& in_;
  Formula formula_;
  AttentionOptions options_;
  Answer<Wide> exact_;
  long double out_bar_ = 0, weights_bar_ = 0, log_sum_exp_bar_ = 0;
};

/// Holds one call, with every instruction set, to attention by the book.
template <class Out, class Q, class K, class V, class M>
void expect_attention(const Inputs<Q, K, V>& in, const M& mask, const Formula& formula,
                      const AttentionOptions& options = {}, Layout layout = Layout::contiguous) {
  Expected<Out, Q, K, V>(in, formula, options).hold(mask, layout);
}

}  // namespace test
}  // namespace attn

// tests/conformance/error_bound.hpp - how far two right computations of one attention may differ.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/config.hpp"
#include "attn/tensor.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// First-order bounds on the error of attention whose every step is rounded with the relative error
/// u (half an epsilon of the type that the steps are held in).
struct ErrorBound {
  long double mass = 0;  // largest sum over d of |scale q_d k_d|, and the largest finite |bias|
  long double max_value = 0;  // largest finite |v|
  long double dim = 0, keys = 0;

  /// A score: dim products and sums, q and k each scaled by a rounded square root of scale (4), or
  /// the sum by scale; division, tanh and product of the softcap (3); the bias (1).
  long double score(long double u) const { return (dim + 8) * u * mass; }
  /// A weight, which is at most 1: its own exponential and the denominator's each carry a score's
  /// error and exp's own, (4 + |s - m|) epsilons; then the sum over keys and the division.
  long double weight(long double u) const {
    const long double exponential = (8 + 2 * (2 * mass)) * u;
    return 2 * (score(u) + exponential) + (keys + 1) * u;
  }
  /// An output, the weighted mean of values: keys products and sums, and the last rounding.
  long double output(long double u) const { return max_value * (weight(u) + (keys + 2) * u); }
  /// The natural logarithm of the denominator.
  long double log_sum_exp(long double u) const {
    return weight(u) + u * (mass + std::log((std::max)(keys, 1.0L)));
  }
};

/// The bounds of one call; `max_bias` is the largest finite |bias|.
template <class T>
ErrorBound error_bound(Tensor4<const T> q, Tensor4<const T> k, Tensor4<const T> v,
                       long double scale, long double max_bias) {
  ErrorBound bound;
  bound.dim = static_cast<long double>(q.dim());
  bound.keys = static_cast<long double>(k.length());
  bound.max_value = largest_magnitude(v);
  const Index group = q.heads() / k.heads();
  for_each_index({q.batch(), q.heads(), q.length(), k.length()},
                 [&](Index b, Index h, Index i, Index j) {
                   long double mass = max_bias;
                   for (Index d = 0; d < q.dim(); ++d) {
                     mass += std::abs(scale * widen(q(b, h, i, d)) * widen(k(b, h / group, j, d)));
                   }
                   bound.mass = (std::max)(bound.mass, mass);
                 });
  return bound;
}

/// The relative error of one rounding to T.
template <class T>
long double rounding_error() {
  return epsilon<T>() / 2;
}

}  // namespace test
}  // namespace attn

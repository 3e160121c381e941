// tests/conformance/error_bound.hpp - how far two right computations of one attention may differ.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/config.hpp"
#include "attn/tensor.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// First-order bounds on the error of attention whose every step is rounded with the relative error
/// u (half an epsilon of the type that the steps are held in).
struct ErrorBound {
  double mass = 0;       // largest sum over d of |scale q_d k_d|, and the largest finite |bias|
  double max_value = 0;  // largest finite |v|
  Index dim = 0, keys = 0;

  /// A score: dim products and sums, q and k each scaled by a rounded square root of scale (4), or
  /// the sum by scale; division, tanh and product of the softcap (3); the bias (1).
  double score(double u) const { return static_cast<double>(dim + 8) * u * mass; }
  /// A weight, which is at most 1: its own exponential and the denominator's each carry a score's
  /// error and exp's own, (4 + |s - m|) epsilons; then the sum over keys and the division.
  double weight(double u) const {
    const double exponential = (8 + 2 * (2 * mass)) * u;
    return 2 * (score(u) + exponential) + static_cast<double>(keys + 1) * u;
  }
  /// An output, the weighted mean of values.
  double output(double u) const {
    return max_value * (weight(u) + static_cast<double>(keys + 1) * u);
  }
  /// The natural logarithm of the denominator.
  double log_sum_exp(double u) const {
    return weight(u) + u * (mass + std::log(static_cast<double>((std::max)(keys, Index{1}))));
  }
};

template <class T>
double largest_finite(Tensor4<T> tensor) {
  double largest = 0;
  for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    const double x =
        std::abs(static_cast<double>(widen(std::remove_const_t<T>(tensor(b, h, i, d)))));
    if (std::isfinite(x)) largest = (std::max)(largest, x);
  });
  return largest;
}

/// The bounds of one call; `max_bias` is the largest finite |bias|.
template <class T>
ErrorBound error_bound(Tensor4<const T> q, Tensor4<const T> k, Tensor4<const T> v, double scale,
                       double max_bias) {
  ErrorBound bound;
  bound.dim = q.dim();
  bound.keys = k.length();
  bound.max_value = largest_finite(v);
  const Index group = q.heads() / k.heads();
  for_each_index({q.batch(), q.heads(), q.length(), k.length()},
                 [&](Index b, Index h, Index i, Index j) {
                   double mass = max_bias;
                   for (Index d = 0; d < q.dim(); ++d) {
                     mass += std::abs(scale * static_cast<double>(widen(q(b, h, i, d))) *
                                      static_cast<double>(widen(k(b, h / group, j, d))));
                   }
                   bound.mass = (std::max)(bound.mass, mass);
                 });
  return bound;
}

}  // namespace test
}  // namespace attn

// attn/detail/projection/normalize.hpp - level 13: rows of the last dim, normalised one by one.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/executor.hpp"
#include "attn/layers/norm_weights.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The sum of term(0) .. term(count - 1), in eight sums side by side that are added at the end.
template <class A, class F>
A sum_side_by_side(Index count, const F& term) {
  A sum[8] = {};
  const Index whole = count / 8 * 8;
  for (Index i = 0; i < whole; i += 8) {
    for (Index j = 0; j < 8; ++j) sum[j] += term(i + j);
  }
  for (Index i = whole; i < count; ++i) sum[i - whole] += term(i);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/// Normalises one row; out may be x.
template <class A, class X, class T, class O>
void normalize_row(const X* x, Index x_stride, Index dim, const LayerNormWeights<T>& weights,
                   O* out, Index out_stride) {
  const auto element = [&](Index d) { return static_cast<A>(x[d * x_stride]); };
  const A size = static_cast<A>(dim);
  const A near_mean = sum_side_by_side<A>(dim, element) / size;
  // What rounding took from the mean is the mean of the differences; it matters where the mean is
  // far larger than the spread.
  const A rest = sum_side_by_side<A>(dim, [&](Index d) { return element(d) - near_mean; }) / size;
  const auto centered = [&](Index d) { return (element(d) - near_mean) - rest; };
  const A variance = sum_side_by_side<A>(dim,
                                         [&](Index d) {
                                           const A difference = centered(d);
                                           return difference * difference;
                                         }) /
                     size;
  const A spread = std::sqrt(variance + static_cast<A>(weights.epsilon));
  const A factor = bits_of(spread) == 0 ? A(0) : 1 / spread;  // a constant row, without epsilon
  for (Index d = 0; d < dim; ++d) {
    A value = centered(d) * factor;
    if (weights.gamma != nullptr) value *= static_cast<A>(weights.gamma[d]);
    if (weights.beta != nullptr) value += static_cast<A>(weights.beta[d]);
    out[d * out_stride] = round_to<O>(value);
  }
}

inline bool is_valid_epsilon(double epsilon) { return is_finite(epsilon) && epsilon >= 0; }

/// Calls run(row of x, row of out) for every row of the last dim.
template <class X, class O, class Run>
void for_each_row(const Tensor4<X>& x, const Tensor4<O>& out, Executor* executor, const Run& run) {
  const Shape4& shape = x.shape();
  const Index rows = shape.batch * shape.heads * shape.length;
  if (rows == 0 || shape.dim == 0) return;
  const Index block = ceil_div(16 * 1024, shape.dim);  // 64 KiB of float an item
  const Index items = ceil_div(rows, block);
  for_each_item(executor, worker_count(executor), items, [&](Index, Index item) {
    const Index end = (std::min)(rows, (item + 1) * block);
    for (Index row = item * block; row < end; ++row) {
      const Index i = row % shape.length, head = row / shape.length % shape.heads;
      const Index batch = row / (shape.length * shape.heads);
      run(&x(batch, head, i, 0), &out(batch, head, i, 0));
    }
  });
}

template <class X, class T, class O>
void check_layer_norm(CallShapes& call, const Tensor4<X>& x, const LayerNormWeights<T>& weights,
                      const Tensor4<O>& out) {
  // Each row is read before it is written, so out may be x itself.
  const bool in_place =
      static_cast<const void*>(x.data()) == static_cast<const void*>(out.data()) &&
      x.shape() == out.shape() && x.stride() == out.stride() && sizeof(X) == sizeof(O);
  if (!in_place) call.add_input("x", TensorRef(x));
  add_coefficients(call, "gamma", weights.gamma, x.dim());
  add_coefficients(call, "beta", weights.beta, x.dim());
  call.add_output("out", TensorRef(out));
  call.expect(x.shape() == out.shape(), "out must have the shape of x");
  require_count(call, "gamma", weights.gamma, "an element of a row", x.dim());
  require_count(call, "beta", weights.beta, "an element of a row", x.dim());
  if (!is_valid_epsilon(weights.epsilon)) {
    call.raise_option("epsilon must be finite and 0 or more, got " + general(weights.epsilon));
  }
}

/// Normalises one row; out may be x.
template <class A, class X, class T, class O>
void rms_normalize_row(const X* x, Index x_stride, Index dim, const RmsNormWeights<T>& weights,
                       O* out, Index out_stride) {
  const A sum = sum_side_by_side<A>(dim, [&](Index d) {
    const A element = static_cast<A>(x[d * x_stride]);
    return element * element;
  });
  const A size = std::sqrt(sum / static_cast<A>(dim) + static_cast<A>(weights.epsilon));
  const A factor = bits_of(size) == 0 ? A(0) : 1 / size;  // a row of zeros, without epsilon
  for (Index d = 0; d < dim; ++d) {
    A value = static_cast<A>(x[d * x_stride]) * factor;
    if (weights.gamma != nullptr) value *= static_cast<A>(weights.gamma[d]);
    out[d * out_stride] = round_to<O>(value);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

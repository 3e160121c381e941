// attn/layers/rms_norm.hpp - level 14: root-mean-square normalisation over the last dim.
#pragma once

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/projection/normalize.hpp"
#include "attn/layers/executor_options.hpp"
#include "attn/layers/norm_weights.hpp"
#include "attn/options.hpp"

namespace attn {

inline namespace ATTN_BUILD {

/// out = x / sqrt(mean(x^2) + epsilon) * gamma, for each row of the last dim.
///
///   x        [B, H, S, D], any strides
///   weights  gamma of D elements, or none, and epsilon
///   out      [B, H, S, D], any strides; x itself, or overlaps no input
///   options  an Executor*, or any options that hold one
///
/// The element types may all differ; sums are held in double if one of them is double, else in
/// float, and rounded once. A row of zeros stays zero, also with epsilon 0. Sizes of 0 do nothing.
/// NaN and infinity make their row NaN.
///
/// Throws: ShapeError, OptionError, before anything is written. Cost: two reads of a row and one
/// write; allocates nothing. Error: at most (D / 16 + 8) epsilon |out|, and one rounding of the
/// result. Squares beyond the range of the accumulation type overflow.
/// Source: B. Zhang, R. Sennrich, "Root mean square layer normalization" (2019).
template <class X, class T, class O>
void rms_norm(const X& x, const RmsNormWeights<T>& weights, O&& out,
              const ExecutorOptions& options = {}) {
  detail::require_element<T>();
  using A = AccumulationType<detail::ElementOf<X>, T, detail::ElementOf<O>>;
  const auto from = detail::input_view(x);
  const auto to = detail::output_view<O>(out);
  detail::CallShapes call("rms_norm");
  detail::check_layer_norm(call, from, LayerNormWeights<T>{weights.gamma, nullptr, weights.epsilon},
                           to);
  detail::for_each_row(from, to, options.executor, [&](const auto* x_row, auto* out_row) {
    detail::rms_normalize_row<A>(x_row, from.stride().dim, from.dim(), weights, out_row,
                                 to.stride().dim);
  });
}

}  // namespace ATTN_BUILD
}  // namespace attn

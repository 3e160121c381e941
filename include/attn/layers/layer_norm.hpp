// attn/layers/layer_norm.hpp - level 14: layer normalisation over the last dim.
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

/// out = (x - mean) / sqrt(variance + epsilon) * gamma + beta, for each row of the last dim; the
/// variance is the biased one (divided by dim).
///
///   x        [B, H, S, D], any strides
///   weights  gamma and beta of D elements, or none, and epsilon
///   out      [B, H, S, D], any strides; x itself, or overlaps no input
///   options  an Executor*, or any options that hold one
///
/// The element types may all differ; sums are held in double if one of them is double, else in
/// float, and rounded once. A row of equal elements gives beta, also with epsilon 0. Sizes of 0 do
/// nothing. NaN and infinity make their row NaN.
///
/// Throws: ShapeError, OptionError, before anything is written.
/// Cost: four reads of a row (from the first-level cache) and one write; allocates nothing.
/// Error: at most (D / 16 + 8) epsilon (1 + |z|) |gamma| and one rounding of the result, z being
/// the normalised value. Differences of more than 1e18 (double: 1e153) overflow the variance.
/// Source: J. Ba, J. Kiros, G. Hinton, "Layer normalization" (2016).
template <class X, class T, class O>
void layer_norm(const X& x, const LayerNormWeights<T>& weights, O&& out,
                const ExecutorOptions& options = {}) {
  detail::require_element<T>();
  using A = AccumulationType<detail::ElementOf<X>, T, detail::ElementOf<O>>;
  const auto from = detail::input_view(x);
  const auto to = detail::output_view<O>(out);
  detail::CallShapes call("layer_norm");
  detail::check_layer_norm(call, from, weights, to);
  detail::for_each_row(from, to, options.executor, [&](const auto* x_row, auto* out_row) {
    detail::normalize_row<A>(x_row, from.stride().dim, from.dim(), weights, out_row,
                             to.stride().dim);
  });
}

}  // namespace ATTN_BUILD
}  // namespace attn

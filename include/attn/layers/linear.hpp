// attn/layers/linear.hpp - level 14: y = x W^T + b.
#pragma once

#include <algorithm>
#include <cstddef>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/projection/linear_product.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/linear_weights.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

inline namespace ATTN_BUILD {

/// out = x W^T + b.
///
///   x        [B, 1, S, in], any strides
///   weights  weight [1, 1, out, in] of any strides, and `out` biases, or none
///   out      [B, 1, S, out], any strides; overlaps no input
///
/// The element types may all differ; sums are held in double if one of them is double, else in
/// float, and rounded once, the bias included. NaN and infinity follow IEEE and stay in their
/// token. in = 0 gives the bias; other sizes of 0 do nothing.
///
/// The bits of a token depend on its own elements, W, b, the element types, the instruction set
/// and whether S is below 16: not on B, other tokens, strides or the executor.
///
/// Throws: ShapeError, OptionError, before anything is written.
/// Cost: 2 B S in out flops; below 16 tokens a read of W. One allocation, none with
/// options.workspace: less than 2 MiB a thread, for any S (S below 16: and a copy of x); in above
/// 8192 takes 4 rows of W that are converted. Error: at most (min(in, 512) + in / 512 + 2) epsilon
/// / 2 times sum |x W^T| + |b|.
template <class X, class T, class O>
void linear(const X& x, const LinearWeights<T>& weights, O&& out,
            const LinearOptions& options = {}) {
  detail::require_element<T>();
  using A = AccumulationType<detail::ElementOf<X>, T, detail::ElementOf<O>>;
  detail::run_linear<A>(detail::input(x), weights, detail::output<O>(out), options);
}

/// How many bytes of options.workspace such a call needs, whatever the type of out, with the
/// concurrency of options.executor. The memory needs no alignment. Throws what the call would
/// throw.
template <class X, class T>
std::size_t linear_workspace_bytes(const X& x, const LinearWeights<T>& weights,
                                   const LinearOptions& options = {}) {
  detail::require_element<T>();
  const detail::TensorRef rows = detail::input(x);
  detail::CallShapes shapes("linear_workspace_bytes");
  detail::check_linear(shapes, rows, weights, nullptr, options);
  const Index offered = detail::worker_count(options.executor);
  const InstructionSet set = options.instruction_set;
  return (std::max)(detail::linear_bytes_of<float>(rows, weights, set, offered),
                    detail::linear_bytes_of<double>(rows, weights, set, offered));
}

}  // namespace ATTN_BUILD
}  // namespace attn

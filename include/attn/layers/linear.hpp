// attn/layers/linear.hpp - level 14: y = x W^T + b.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/projection/linear_call.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/executor.hpp"
#include "attn/instruction_set.hpp"
#include "attn/layers/coefficients.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// The weights of y = x W^T + b, as PyTorch's Linear stores them. Views: they own nothing.
///
/// Memory of (in x out), to be used as x W, is the same view with its strides swapped:
/// Tensor4<const T>(data, {1, 1, out, in}, {0, 0, 1, out}). A part of a fused weight [3 * out, in]
/// is fused.slice_length(first, out) with the bias Span(bias + first, out).
template <class T>
struct LinearWeights {
  Tensor4<const T> weight;         ///< [1, 1, out, in], any strides
  Coefficients<T> bias = nullptr;  ///< `out` elements, or none; a bare pointer: unchecked
};

/// Who computes a linear layer, and how. No choice changes a bit, but for the instruction set.
/// Members have the names that they have in AttentionOptions; see ExecutorOptions.
struct LinearOptions {
  /// Who runs the work. Unset: the calling thread alone.
  Executor* executor = nullptr;
  /// Forces a lower instruction set than the CPU's best; OptionError if the CPU lacks it.
  InstructionSet instruction_set = InstructionSet::best;
  /// Scratch memory, which calls at the same time must not share; linear_workspace_bytes says how
  /// much. Unset: allocated once a call.
  Workspace workspace;
};

namespace detail {

template <class A, class T>
LinearCall<A> linear_call(const TensorRef& x, const LinearWeights<T>& weights, const TensorRef& out,
                          InstructionSet set) {
  return LinearCall<A>(x, TensorRef(weights.weight), row_of(weights.bias, weights.weight.length()),
                       out, set);
}

inline namespace ATTN_ERRORS {

/// The rules of one product. `out` is null where only its scratch is asked for.
template <class T>
void check_linear(CallShapes& call, const TensorRef& x, const LinearWeights<T>& weights,
                  const TensorRef* out, const LinearOptions& options) {
  call.add_input("x", x);
  call.add_input("weight", TensorRef(weights.weight));
  add_coefficients(call, "bias", weights.bias, weights.weight.length());
  if (out != nullptr) call.add_output("out", *out);
  const Shape4& w = weights.weight.shape();
  call.require(x.shape.heads == 1, "x must be [batch, 1, length, in]");
  call.require(w == Shape4{1, 1, w.length, x.shape.dim}, "weight must be [1, 1, out, dim of x]");
  require_count(call, "bias", weights.bias, "a row of weight", w.length);
  call.require(out == nullptr || out->shape == Shape4{x.shape.batch, 1, x.shape.length, w.length},
               "out must be [batch of x, 1, length of x, length of weight]");
  AttentionOptions rules;
  rules.instruction_set = options.instruction_set;
  check_options<double>(call, rules);
}

template <class A, class T>
void run_linear(const TensorRef& x, const LinearWeights<T>& weights, const TensorRef& out,
                const LinearOptions& options) {
  CallShapes shapes("linear");
  check_linear(shapes, x, weights, &out, options);
  const LinearCalls<A, 1> product{{linear_call<A>(x, weights, out, options.instruction_set)}};
  if (product.items() == 0) return;
  const Index workers = product.workers(worker_count(options.executor));
  const WorkMemory memory(shapes, options.workspace, product.bytes(workers),
                          "linear_workspace_bytes");
  product.run(options.executor, workers, memory.data());
}

/// The scratch of a product that is summed in A.
template <class A, class T>
std::size_t linear_bytes_of(const TensorRef& x, const LinearWeights<T>& weights, InstructionSet set,
                            Index offered) {
  const LinearCalls<A, 1> product{{linear_call<A>(x, weights, TensorRef(), set)}};
  return product.items() == 0 ? 0 : product.bytes(product.workers(offered)) + Arena::kAlignment;
}

}  // namespace ATTN_ERRORS
}  // namespace detail

inline namespace ATTN_ERRORS {

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
  static_assert(detail::is_tensor_v<X> && detail::is_tensor_v<O>,
                "attn: x and out of linear must be attn::Tensor4 views (or Tensor4Buffer)");
  static_assert(!std::is_const_v<typename decltype(detail::ArgumentOf<O>::view(out))::Element>,
                "attn: out is written to: its element type must not be const");
  detail::require_element<detail::ElementOf<X>>();
  detail::require_element<detail::ElementOf<O>>();
  detail::require_element<T>();
  using A = AccumulationType<detail::ElementOf<X>, T, detail::ElementOf<O>>;
  detail::run_linear<A>(detail::TensorRef(detail::ArgumentOf<X>::view(x)), weights,
                        detail::TensorRef(detail::ArgumentOf<O>::view(out)), options);
}

/// How many bytes of options.workspace such a call needs, whatever the type of out, with the
/// concurrency of options.executor. The memory needs no alignment. Throws what the call would
/// throw.
template <class X, class T>
std::size_t linear_workspace_bytes(const X& x, const LinearWeights<T>& weights,
                                   const LinearOptions& options = {}) {
  static_assert(detail::is_tensor_v<X>,
                "attn: x of linear must be an attn::Tensor4 view (or Tensor4Buffer)");
  detail::require_element<detail::ElementOf<X>>();
  detail::require_element<T>();
  const detail::TensorRef rows(detail::ArgumentOf<X>::view(x));
  detail::CallShapes shapes("linear_workspace_bytes");
  detail::check_linear(shapes, rows, weights, nullptr, options);
  const Index offered = detail::worker_count(options.executor);
  const InstructionSet set = options.instruction_set;
  return (std::max)(detail::linear_bytes_of<float>(rows, weights, set, offered),
                    detail::linear_bytes_of<double>(rows, weights, set, offered));
}

}  // namespace ATTN_ERRORS
}  // namespace attn

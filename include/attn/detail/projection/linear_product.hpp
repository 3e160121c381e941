// attn/detail/projection/linear_product.hpp - level 13: one product with weights, checked and run.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/projection/linear_call.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/linear_weights.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class A, class T>
LinearCall<A> linear_call(const TensorRef& x, const LinearWeights<T>& weights, const TensorRef& out,
                          InstructionSet set) {
  return LinearCall<A>(x, TensorRef(weights.weight), row_of(weights.bias, weights.weight.length()),
                       out, set);
}

/// The rules of one product. `out` is null where only its scratch is asked for.
template <class T>
void check_linear(CallShapes& call, const TensorRef& x, const LinearWeights<T>& weights,
                  const TensorRef* out, const LinearOptions& options) {
  call.add_input("x", x);
  call.add_input("weight", TensorRef(weights.weight));
  add_coefficients(call, "bias", weights.bias, weights.weight.length());
  if (out != nullptr) call.add_output("out", *out);
  const Shape4& w = weights.weight.shape();
  call.expect(x.shape.heads == 1, "x must be [batch, 1, length, in]");
  call.expect(w == Shape4{1, 1, w.length, x.shape.dim}, "weight must be [1, 1, out, dim of x]");
  require_count(call, "bias", weights.bias, "a row of weight", w.length);
  call.expect(out == nullptr || out->shape == Shape4{x.shape.batch, 1, x.shape.length, w.length},
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

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

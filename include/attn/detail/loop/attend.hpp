// attn/detail/loop/attend.hpp - level 9: calls of attention, from their arguments to their results.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <limits>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/held_keys.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/tile_plan.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

inline void add_inputs(CallShapes& shapes, const TensorRef& q, const KeyValueSource& source) {
  shapes.add_input("q", q);
  shapes.add_input("k", source.keys, source.key_shape);
  shapes.add_input("v", source.values, source.value_shape);
}

/// Runs a checked call in the memory that the options offer.
template <class A>
void run_attention(const CallShapes& shapes, const AttentionCall<A>& call,
                   const AttentionOptions& options) {
  const Index items = call.num_items();
  if (items == 0) return;
  const Index workers = (std::min)(worker_count(options.executor), items);
  const ScratchBytes bytes = scratch_bytes(call);
  const WorkMemory memory(shapes, options.workspace, bytes.total(workers));
  run_attention(call, options.executor, workers, bytes, memory.data());
}

/// Checks and runs attention of q over `source`. `past`: where a cache says its queries stand.
/// kForgets: whether it lets keys go, so that some may be missed.
template <bool kForgets = false, class A>
void attend(const char* function, const TensorRef& q, const KeyValueSource& source,
            const PerBatch* past, const TensorRef& out, const MaskOf<A>& mask,
            const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  CallShapes shapes(function);
  add_inputs(shapes, q, source);
  check_outputs(shapes, q.shape, source.length, source.values.shape.dim, out, extra);
  check_inputs(shapes, q.shape, source.key_shape, source.value_shape);
  const AttentionCall<A> call =
      describe_call<A>(shapes, q, source, past, out, mask, options, extra);
  if constexpr (kForgets) require_held_keys(shapes, call);
  run_attention(shapes, call, options);
}

/// The memory that one accumulation type takes: the most that any length of the source can need,
/// so that a workspace may be sized once for a cache.
template <class A>
std::size_t workspace_bytes_of(CallShapes& shapes, const TensorRef& q, const KeyValueSource& source,
                               const AttentionOptions& options) {
  // The mask and the other options do not change the size. They are left out: a lambda need not
  // accept both types, nor a number lie within the range of both.
  AttentionOptions sizing;
  sizing.instruction_set = options.instruction_set;
  sizing.allow_bf16_weights = options.allow_bf16_weights;
  const Index concurrency = worker_count(options.executor);
  std::size_t most = 0;
  const auto try_length = [&](Index length, Index stored) {
    const AttentionCall<A> call = describe_call<A>(shapes, q, source.with_length(length, stored),
                                                   nullptr, TensorRef(), Mask(), sizing, {});
    const Index items = call.num_items();
    if (items == 0) return;
    const Index workers = (std::min)(concurrency, items);
    most = (std::max)(most, scratch_bytes(call).total(workers) + Arena::kAlignment);
  };
  // Within one form of tile, more keys never need less. The form may change at kFewKeys. A ring's
  // stream has any length, and its keys may lie in one more split than as many from the first on:
  // splits of any size, since all divide the largest.
  const Index capacity = source.capacity, few = (std::min)(capacity, kFewKeys);
  if (source.map.order == KeyMap::Order::ring) {
    try_length(kFewKeys, few);
    try_length((ceil_div(capacity, kLargestSplit) + 1) * kLargestSplit + 1, capacity);
  } else {
    try_length(few, few);
    try_length(capacity, capacity);
  }
  return most;
}

/// The memory that a call takes, whatever it sums in. A template, so that a program which does not
/// ask has no use for calls that sum in double.
template <class = void>
std::size_t workspace_bytes(const char* function, const TensorRef& q, const KeyValueSource& source,
                            const PerBatch* past, const MaskDeclaration& mask,
                            const AttentionOptions& options) {
  CallShapes shapes(function);
  add_inputs(shapes, q, source);
  check_inputs(shapes, q.shape, source.key_shape, source.value_shape);
  check_options<double>(shapes, options);
  resolve_offset(shapes, q, source, past, mask, options, (std::numeric_limits<double>::max)(),
                 Purpose::sizing);
  return (std::max)(workspace_bytes_of<float>(shapes, q, source, options),
                    workspace_bytes_of<double>(shapes, q, source, options));
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

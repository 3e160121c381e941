// attn/detail/loop/inspect_head.hpp - level 9: one head of a call, taken apart.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <limits>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/loop/attend.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/steps/inspect.hpp"
#include "attn/detail/steps/inspection_warnings.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// A matrix of the inspected head, as the tensor of a call in which every batch and head is this
/// one.
template <class A>
Tensor4<A> as_only_head(Tensor4Buffer<A>& buffer) {
  const Shape4 shape = buffer.shape();
  return Tensor4<A>(buffer.data(), shape, Stride4{0, 0, shape.dim, 1});
}

/// Sets the range of a step, over its entries where counts(entry) is true.
template <class Step, class Counts>
void measure(Step& step, const Counts& counts) {
  using A = decltype(step.min);
  const A* const values = step.values.data();
  const Index size = step.values.size();
  A min = (std::numeric_limits<A>::max)(), max = std::numeric_limits<A>::lowest();
  Index counted = 0, finite = 0;
  for (Index i = 0; i < size; ++i) {  // without branches: compilers turn it into vectors
    const bool is_counted = counts(i), is_measured = is_counted && is_finite(values[i]);
    counted += is_counted ? 1 : 0;
    finite += is_measured ? 1 : 0;
    min = is_measured && values[i] < min ? values[i] : min;
    max = is_measured && values[i] > max ? values[i] : max;
  }
  step.not_finite = counted - finite;
  step.min = finite == 0 ? A(0) : min;
  step.max = finite == 0 ? A(0) : max;
}

/// Ranges, counts and sums.
template <class Inspection>
void summarize(Inspection& result) {
  using A = decltype(result.masked.min);
  const Shape4 shape = result.masked.values.shape();
  const A* const masked = result.masked.values.data();
  const auto is_seen = [&](Index i) { return !is_negative_infinity(masked[i]); };
  for (auto* const step : {&result.raw, &result.scaled, &result.softcapped, &result.biased,
                           &result.masked, &result.weights}) {
    measure(*step, is_seen);
  }
  measure(result.output, [](Index) { return true; });
  const A* const weights = result.weights.values.data();
  for (Index i = 0; i < shape.length; ++i) {
    Index absent = 0;
    double sum = 0;
    for (Index at = i * shape.dim; at < (i + 1) * shape.dim; ++at) {
      absent += is_seen(at) ? 0 : 1;
      sum += static_cast<double>(weights[at]);
    }
    result.masked_keys.push_back(absent);
    result.row_sums.push_back(static_cast<A>(sum));
  }
}

/// Fills the steps from raw to masked with what the stages of the kernel compute. All keys are
/// computed, also those that a mask lets the kernel skip.
template <class A, class Inspection>
void inspect_scores(const CallShapes& shapes, const AttentionCall<A>& call, Inspection& result) {
  const InspectStep<A> step(
      call, {as_only_head(result.raw.values), as_only_head(result.scaled.values),
             as_only_head(result.softcapped.values), as_only_head(result.biased.values),
             as_only_head(result.masked.values)});
  const Mask all_keys;
  const AttentionCall<A> raw = without_scores(call, all_keys);
  const WorkMemory memory(shapes, Workspace(), scratch_bytes(call).total(1));
  for (Index i = 0; i < call.num_blocks(); ++i) {
    walk_block(raw, raw.block(0, i), AnyStep<A>(step), memory.data());
  }
}

/// Fills `result` with all that one query head of one batch does.
template <class A, class Inspection>
void inspect_head(const TensorRef& q, const TensorRef& k, const TensorRef& v, Index batch,
                  Index head, const ErasedMask<A>& mask, const AttentionOptions& options,
                  Inspection& result) {
  CallShapes shapes("inspect_attention");
  const KeyValueSource source(k, v);
  add_inputs(shapes, q, source);
  check_inputs(shapes, q.shape, k.shape, v.shape);
  if (batch < 0 || batch >= q.shape.batch || head < 0 || head >= q.shape.heads) {
    shapes.raise_shape("q has no batch " + std::to_string(batch) + " with a head " +
                       std::to_string(head));
  }
  AttentionOptions own = options;
  own.workspace = Workspace();
  own.allow_bf16_weights = false;
  AttentionCall<A> call =
      describe_call<A>(shapes, q, source, nullptr, TensorRef(), mask, own, AttentionOutputs<A>{});
  // One head is a group by itself from here on; the tiles stay those of the whole call, and so the
  // bits.
  call.part.num_batches = call.part.num_groups = call.part.group_heads = 1;
  call.part.first_batch = batch;
  call.part.first_head = head;

  const CallSizes& sizes = call.sizes;
  result.batch = batch;
  result.head = head;
  result.key_head = head / sizes.heads_per_key;
  result.value_head = head / sizes.heads_per_value;
  result.q = q.shape;
  result.k = k.shape;
  result.v = v.shape;
  result.scale = call.score.scale;
  result.softcap = call.score.softcap;
  result.query_offset = call.offset[batch];
  result.sink = call.sink(head);
  result.dropout = call.dropout.dropout.probability;
  const auto matrix = [&](Index columns) {
    return Tensor4Buffer<A>(Shape4{1, 1, sizes.query_length, columns});
  };
  for (auto* const step : {&result.raw, &result.scaled, &result.softcapped, &result.biased,
                           &result.masked, &result.weights}) {
    step->values = matrix(sizes.key_length);
  }
  result.output.values = matrix(sizes.value_dim);
  result.log_sum_exp = matrix(1);

  // The scores, stage by stage; weights and output by the kernel itself.
  inspect_scores(shapes, call, result);
  call.outputs.out = TensorRef(as_only_head(result.output.values));
  call.outputs.extra.weights = as_only_head(result.weights.values);
  call.outputs.extra.log_sum_exp = as_only_head(result.log_sum_exp);
  run_attention(shapes, call, own);

  summarize(result);
  result.warnings = inspection_warnings(call, shapes.tensors(), result);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/loop/ragged_call.hpp - level 9: many sequences of different lengths, packed one
// behind the other, each a call of attention of its own.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/loop/attend.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Packed queries, and the keys of each sequence: packed too, or those of a cache.
struct RaggedCall {
  TensorRef q, out;
  KeyValueSource source;
  PerBatch query_starts = 0, key_starts = 0;
  bool is_cached = false;

  Index sequences() const { return query_starts.size() - 1; }
  Index query_length(Index s) const { return query_starts[s + 1] - query_starts[s]; }
  Index key_length(Index s) const {
    return is_cached ? source.end[s] : key_starts[s + 1] - key_starts[s];
  }
  /// Sizes the work of a sequence relative to that of the others.
  double work(Index s) const {
    return static_cast<double>(query_length(s)) * static_cast<double>(key_length(s));
  }

  /// Tokens first .. first + count - 1 of a packed tensor, as the only ones of all batches.
  static TensorRef part(TensorRef packed, Index first, Index count, Index batch) {
    if (count > 0) packed.data = packed.at(first * packed.stride.length);
    packed.shape.batch = batch;
    packed.shape.length = count;
    packed.stride.batch = 0;
    return packed;
  }
  KeyValueSource keys_of(Index s) const {
    if (!is_cached) {
      const Index first = key_starts[s], count = key_length(s);
      KeyValueSource keys(part(source.keys, first, count, 1), part(source.values, first, count, 1));
      keys.matrix_products = source.matrix_products;
      return keys;
    }
    KeyValueSource keys = source;  // begin and end are those of all sequences
    keys.length = keys.key_shape.length = keys.value_shape.length = key_length(s);
    return keys;
  }
};

/// The attention of one sequence, checked.
template <class A>
AttentionCall<A> describe_sequence(const CallShapes& shapes, const RaggedCall& ragged, Index s,
                                   const MaskOf<A>& mask, const AttentionOptions& options,
                                   const AttentionOutputs<A>& extra) {
  const Index first = ragged.query_starts[s], count = ragged.query_length(s);
  const Index batch = ragged.sequences();
  CallShapes call = shapes;
  call.set_sequence(s, count, ragged.key_length(s));
  AttentionOutputs<A> part;
  if (extra.log_sum_exp.data() != nullptr) {
    const TensorRef rows = ragged.part(TensorRef(extra.log_sum_exp), first, count, 1);
    part.log_sum_exp = Tensor4<A>(static_cast<A*>(rows.written()), rows.shape, rows.stride);
  }
  const PerBatch past = ragged.source.end - count;
  return describe_call<A>(call, ragged.part(ragged.q, first, count, batch), ragged.keys_of(s),
                          ragged.is_cached ? &past : nullptr,
                          ragged.part(ragged.out, first, count, batch), mask, options, part);
}

/// Checks where sequences begin among `total` tokens.
inline void check_starts(const CallShapes& call, const char* name, const PerBatch& starts,
                         Index total) {
  const auto raise = [&](const std::string& rule) {
    call.raise_shape(std::string(name) + " must " + rule);
  };
  if (starts.is_scalar() || starts.size() < 1) {
    raise("hold one number a sequence and one for the end");
  }
  if (starts[0] != 0) raise("begin with 0, got " + std::to_string(starts[0]));
  for (Index s = 0; s + 1 < starts.size(); ++s) {
    if (starts[s + 1] < starts[s]) {
      raise("not decrease, got " + std::to_string(starts[s]) + " and then " +
            std::to_string(starts[s + 1]));
    }
  }
  const Index end = starts[starts.size() - 1];
  if (end != total) {
    raise("end with the number of packed tokens, " + std::to_string(total) + ", got " +
          std::to_string(end));
  }
}

/// Checks the inputs of a call.
inline void check_ragged(CallShapes& call, const RaggedCall& ragged) {
  const Shape4 &q = ragged.q.shape, &k = ragged.source.key_shape, &v = ragged.source.value_shape;
  call.add_input("q", ragged.q);
  call.add_input("k", ragged.source.keys, k);
  call.add_input("v", ragged.source.values, v);
  call.expect(q.batch == 1, "packed tensors must have batch 1");
  check_starts(call, ragged.is_cached ? "query_starts" : "starts", ragged.query_starts, q.length);
  if (ragged.is_cached) {
    check_inputs(call, Shape4{k.batch, q.heads, q.length, q.dim}, k, v);
    if (k.batch != ragged.sequences()) {
      call.raise_shape("query_starts must hold one number a sequence of the cache, " +
                       std::to_string(k.batch) + ", and one for the end, got " +
                       std::to_string(ragged.query_starts.size()));
    }
    return;
  }
  check_inputs(call, q, k, v);
  check_starts(call, "key_starts", ragged.key_starts, k.length);
  if (ragged.key_starts.size() != ragged.query_starts.size()) {
    call.raise_shape("query_starts and key_starts must hold as many numbers, got " +
                     std::to_string(ragged.query_starts.size()) + " and " +
                     std::to_string(ragged.key_starts.size()));
  }
}

/// How the sequences are run: those with much work one after the other, each by all workers; the
/// others side by side. Bits do not depend on it.
struct RaggedPlan {
  Index concurrency = 1;   ///< what the executor offers
  Index workers = 1;       ///< that run sequences side by side
  double much_work = 0;    ///< more than a worker's share of all sequences
  std::size_t bytes = 0;   ///< of scratch for one sequence with much work
  std::size_t single = 0;  ///< of scratch for one of the others

  RaggedPlan(Executor* executor, Index sequences)
      : concurrency(worker_count(executor)),
        workers((std::max)(Index{1}, (std::min)(concurrency, sequences))) {}
  bool has_much(double work) const { return work > much_work; }
  std::size_t total_bytes() const {
    return (std::max)(bytes, single * static_cast<std::size_t>(workers));
  }
};

template <class A>
RaggedPlan plan_ragged(const CallShapes& shapes, const RaggedCall& ragged, const MaskOf<A>& mask,
                       const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  RaggedPlan plan(options.executor, ragged.sequences());
  double work = 0;
  for (Index s = 0; s < ragged.sequences(); ++s) work += ragged.work(s);
  plan.much_work = work / static_cast<double>(plan.concurrency);
  for (Index s = 0; s < ragged.sequences(); ++s) {
    const AttentionCall<A> call = describe_sequence(shapes, ragged, s, mask, options, extra);
    const Index items = call.num_items();
    if (items == 0) continue;
    const ScratchBytes bytes = scratch_bytes(call);
    if (plan.has_much(ragged.work(s))) {
      const Index workers = (std::min)(plan.concurrency, items);
      plan.bytes = (std::max)(plan.bytes, bytes.total(workers));
    } else {
      plan.single = (std::max)(plan.single, bytes.total(1));
    }
  }
  return plan;
}

/// Checks and runs a ragged call.
template <class A>
void attend_ragged(CallShapes& shapes, const RaggedCall& ragged, const MaskOf<A>& mask,
                   const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  check_ragged(shapes, ragged);
  if (extra.weights.data() != nullptr || extra.weights.shape() != Shape4{}) {
    shapes.raise_option(
        "extra.weights must not be set: sequences of different lengths have no common tensor of "
        "weights");
  }
  check_outputs(shapes, ragged.q.shape, 0, ragged.source.value_shape.dim, ragged.out, extra);
  check_options<A>(shapes, options);
  for (Index s = 0; s < ragged.sequences(); ++s) {
    if (ragged.source.begin[s] == 0) continue;  // all of it is held
    require_held_keys(shapes, describe_sequence(shapes, ragged, s, mask, options, extra));
  }
  const RaggedPlan plan = plan_ragged(shapes, ragged, mask, options, extra);
  const WorkMemory memory(shapes, options.workspace, plan.total_bytes(), "ragged_workspace_bytes");
  const auto run = [&](Index s, Executor* executor, Index concurrency, void* scratch) {
    const AttentionCall<A> call = describe_sequence(shapes, ragged, s, mask, options, extra);
    const Index items = call.num_items();
    if (items == 0) return;
    run_attention(call, executor, (std::min)(concurrency, items), scratch_bytes(call), scratch);
  };
  for (Index s = 0; s < ragged.sequences(); ++s) {
    if (plan.has_much(ragged.work(s))) run(s, options.executor, plan.concurrency, memory.data());
  }
  for_each_item(options.executor, plan.workers, ragged.sequences(), [&](Index slot, Index s) {
    if (plan.has_much(ragged.work(s))) return;
    run(s, nullptr, 1,
        static_cast<char*>(memory.data()) + static_cast<std::size_t>(slot) * plan.single);
  });
}

/// The memory that one accumulation type takes, whatever the lengths of a cache.
template <class A>
std::size_t ragged_bytes_of(const CallShapes& shapes, const RaggedCall& ragged,
                            const AttentionOptions& options) {
  AttentionOptions alone = options;
  alone.executor = nullptr;
  std::size_t shared = 0, single = 0;
  for (Index s = 0; s < ragged.sequences(); ++s) {
    CallShapes call = shapes;
    call.set_sequence(s, ragged.query_length(s), ragged.key_length(s));
    const TensorRef q =
        ragged.part(ragged.q, ragged.query_starts[s], ragged.query_length(s), ragged.sequences());
    const KeyValueSource keys = ragged.keys_of(s);
    shared = (std::max)(shared, workspace_bytes_of<A>(call, q, keys, options));
    single = (std::max)(single, workspace_bytes_of<A>(call, q, keys, alone));
  }
  const RaggedPlan plan(options.executor, ragged.sequences());
  return (std::max)(shared, single * static_cast<std::size_t>(plan.workers));
}

/// As workspace_bytes.
template <class = void>
std::size_t ragged_bytes(CallShapes& shapes, const RaggedCall& ragged, const MaskDeclaration& mask,
                         const AttentionOptions& options) {
  check_ragged(shapes, ragged);
  check_options<double>(shapes, options);
  for (Index s = 0; s < ragged.sequences(); ++s) {
    const Index count = ragged.query_length(s);
    CallShapes call = shapes;
    call.set_sequence(s, count, ragged.key_length(s));
    const PerBatch past = ragged.source.end - count;
    resolve_offset(call, ragged.part(ragged.q, 0, count, ragged.sequences()), ragged.keys_of(s),
                   ragged.is_cached ? &past : nullptr, mask, options,
                   (std::numeric_limits<double>::max)(), Purpose::sizing);
  }
  return (std::max)(ragged_bytes_of<float>(shapes, ragged, options),
                    ragged_bytes_of<double>(shapes, ragged, options));
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

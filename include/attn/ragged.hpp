// attn/ragged.hpp - level 13: attention of many sequences of different lengths, packed one behind
// the other: no padding, and no mask tensor.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/loop/ragged_call.hpp"
#include "attn/kv_cache.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// A view of packed memory (total_tokens, heads, dim) as [1, heads, total_tokens, dim].
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> packed(T* data, Index total_tokens, Index heads,
                                               Index dim) {
  return bshd(data, 1, total_tokens, heads, dim);
}

/// Where sequences begin in packed tensors: sequence s holds the tokens starts[s] ..
/// starts[s + 1] - 1, so there is one number more than there are sequences (FlashAttention's
/// cu_seqlens). Converts from the arrays that PerBatch takes; {query_starts, key_starts} for
/// cross-attention. The arrays outlive every use.
class SequenceStarts {
 public:
  template <class Starts, std::enable_if_t<std::is_convertible_v<Starts&&, PerBatch> &&
                                               !std::is_arithmetic_v<std::decay_t<Starts>>,
                                           int> = 0>
  ATTN_ALWAYS_INLINE SequenceStarts(Starts&& starts)
      : query_(std::forward<Starts>(starts)), key_(query_) {}
  ATTN_ALWAYS_INLINE SequenceStarts(PerBatch query_starts, PerBatch key_starts)
      : query_(query_starts), key_(key_starts) {}

  ATTN_ALWAYS_INLINE const PerBatch& query() const { return query_; }
  ATTN_ALWAYS_INLINE const PerBatch& key() const { return key_; }

 private:
  PerBatch query_, key_;
};

namespace detail {
inline namespace ATTN_BUILD {

template <class Q, class K, class V>
RaggedCall packed_call(const Q& q, const K& k, const V& v, const SequenceStarts& starts) {
  RaggedCall ragged;
  ragged.q = input(q);
  ragged.source = keys_and_values(k, v);
  ragged.query_starts = starts.query();
  ragged.key_starts = starts.key();
  return ragged;
}
template <class Q, class C>
RaggedCall cached_call(const Q& q, const C& cache, const PerBatch& query_starts) {
  RaggedCall ragged;
  ragged.q = input(q);
  ragged.source = cache.source();
  ragged.query_starts = query_starts;
  ragged.is_cached = true;
  return ragged;
}
/// The extra outputs; a tensor alone is the log-sum-exp.
template <class A, class Extra>
AttentionOutputs<A> ragged_outputs(const Extra& extra) {
  if constexpr (is_tensor_v<Extra>) {
    AttentionOutputs<A> outputs;
    outputs.log_sum_exp = extra;
    return outputs;
  } else {
    return extra_outputs<A>(extra);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail

inline namespace ATTN_BUILD {

/// Attention of each sequence within itself (or, given two arrays of starts, to the keys of the
/// same number): the bits of one call a sequence.
///
///   q       [1, Hq, total queries, Dk]  packed; attn::packed makes such views
///   k, v    [1, Hk, total keys, Dk], [1, Hv, total keys, Dv]
///   out     [1, Hq, total queries, Dv]
///   starts  where sequences begin; one array, or {query_starts, key_starts}
///   mask    as for a batch that holds sequence s as batch s: per-batch numbers are one a sequence,
///           lambdas see the batch s and positions within the sequence, dropout is drawn for batch
///           s
///   extra   log_sum_exp [1, Hq, total queries, 1], or not set; a view of it alone will do. weights
///           must not be set
///
/// Position 0 is each sequence's first key; causal_bottom_right() is each sequence's own. A
/// sequence without keys gets zeros. Throws: ShapeError, OptionError, before anything is written.
/// Cost: that of the calls; one allocation, none with options.workspace (ragged_workspace_bytes).
template <class Q, class K, class V, class O, class M = NoMask,
          class Extra = AttentionOutputs<detail::AccumulationOf<Q, K, V, O>>>
void ragged_attention(const Q& q, const K& k, const V& v, O&& out, const SequenceStarts& starts,
                      const M& mask = M(), const AttentionOptions& options = {},
                      const Extra& extra = {}) {
  using A = detail::AccumulationOf<Q, K, V, O>;
  detail::RaggedCall ragged = detail::packed_call(q, k, v, starts);
  ragged.out = detail::output<O>(out);
  detail::CallShapes shapes("ragged_attention");
  detail::attend_ragged(shapes, ragged, detail::checked_mask<6>(mask), options,
                        detail::ragged_outputs<A>(extra));
}

/// The same over a cache: sequence s of the packed queries attends to sequence s of the cache, its
/// last query standing at the last key. Prompts and single tokens may be mixed in one call: append
/// (append_to) what is new of each sequence first.
template <class Q, class C, class O, class M = NoMask,
          std::enable_if_t<detail::is_cache_v<C>, int> = 0,
          class Extra = AttentionOutputs<detail::AccumulationOf<Q, C, O>>>
void ragged_attention(const Q& q, const C& cache, O&& out, const PerBatch& query_starts,
                      const M& mask = M(), const AttentionOptions& options = {},
                      const Extra& extra = {}) {
  using A = detail::AccumulationOf<Q, C, O>;
  detail::RaggedCall ragged = detail::cached_call(q, cache, query_starts);
  ragged.out = detail::output<O>(out);
  detail::CallShapes shapes("ragged_attention");
  detail::attend_ragged(shapes, ragged, cache.mask_with(detail::checked_mask<5>(mask)), options,
                        detail::ragged_outputs<A>(extra));
}

/// How many bytes of options.workspace such a call needs, whatever the type of out, with the
/// concurrency of options.executor. Throws what the call would throw.
template <class Q, class K, class V, class M = NoMask>
std::size_t ragged_workspace_bytes(const Q& q, const K& k, const V& v, const SequenceStarts& starts,
                                   const M& mask = M(), const AttentionOptions& options = {}) {
  detail::CallShapes shapes("ragged_workspace_bytes");
  return detail::ragged_bytes(shapes, detail::packed_call(q, k, v, starts),
                              detail::checked_mask<5>(mask), options);
}
template <class Q, class C, class M = NoMask, std::enable_if_t<detail::is_cache_v<C>, int> = 0>
std::size_t ragged_workspace_bytes(const Q& q, const C& cache, const PerBatch& query_starts,
                                   const M& mask = M(), const AttentionOptions& options = {}) {
  detail::CallShapes shapes("ragged_workspace_bytes");
  return detail::ragged_bytes(shapes, detail::cached_call(q, cache, query_starts),
                              cache.mask_with(detail::checked_mask<4>(mask)), options);
}

}  // namespace ATTN_BUILD
}  // namespace attn

// attn/kv_cache.hpp - level 12: attention over cached keys and values.
//
//   KeyValueCache         fixed capacity a sequence                     caches/contiguous.hpp
//   RollingKeyValueCache  the last tokens, under a sliding window,      caches/rolling.hpp
//                         and the first ones, if so wished
//   PagedKeyValueCache    pages from a pool, prefixes shared            caches/paged.hpp
//
// All of them have
//
//   append(k, v)           n tokens more of every sequence: k [B, Hk, n, Dk], v [B, Hv, n, Dv]
//   append(k, v, counts)   of sequence b the last counts[b] of the n; those before are padding
//   append_to(b, k, v)     of sequence b alone: k [1, Hk, n, Dk], v [1, Hv, n, Dv]
//   truncate(length)       takes back all but the first length[b] tokens of each sequence
//   reset(), reset(b)      forgets all tokens, of all sequences or of one
//   reorder(parents)       sequence b takes the tokens of sequence parents[b]: beams
//   keep_tokens(b, tokens)   sequence b keeps these tokens alone, which move up
//   save(k, v)             writes the tokens that are held, num_held(b) of sequence b
//   restore(lengths, k, v)   takes them back: sequences of lengths[b] tokens that go on
//   length(b), lengths()   how many tokens a sequence has, evicted ones included
//
// and throw ShapeError, with nothing changed, where that cannot be (detail/caches/token_cache.hpp,
// stored_tokens.hpp). Caches whose values are the first elements of their keys
// (CacheShape::values_in_keys) take keys alone: append(k), append(k, counts), append_to(b, k),
// save(k), restore(lengths, k).
//
//   cache.append(k, v);                                   // first the new tokens,
//   scaled_dot_product_attention(q, cache, out, causal());  // then their queries
//
// The kernel finds each key's row through an index map (detail/rows/key_map.hpp): no cache is
// gathered into a copy, and a call over a cache has the bits of the same call over plain tensors.
#pragma once

#include <cstddef>
#include <type_traits>

#include "attn/attention.hpp"
#include "attn/caches/contiguous.hpp"
#include "attn/caches/paged.hpp"
#include "attn/caches/rolling.hpp"
#include "attn/config.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

template <class T>
inline constexpr bool is_cache_v<KeyValueCache<T>> = true;
template <class T>
inline constexpr bool is_cache_v<RollingKeyValueCache<T>> = true;
template <class T>
inline constexpr bool is_cache_v<PagedKeyValueCache<T>> = true;

}  // namespace detail

inline namespace ATTN_BUILD {

/// Attention to the tokens of a cache: k and v are its first length(b) tokens, Sk its longest
/// length. What a call over tensors does with key_lengths(cache.lengths()).
///
///   q      [B, Hq, Sq, Dk]     B: the sequences of the cache, or any number if it holds one
///   out    [B, Hq, Sq, Dv]     overlaps neither q nor the memory of the cache
///   mask   of the absolute positions of keys, as is a mask or bias tensor: [B|1, Hq|1, Sq|1, Sk|1]
///   extra  weights [B, Hq, Sq, Sk] (0 where a key is absent), log-sum-exp [B, Hq, Sq, 1]
///
/// The last query of each batch stands at the last key of its sequence, so query i is at position
/// length(b) - Sq + i, for causal() and causal_bottom_right() too, unless options.query_offset or a
/// mask says otherwise. So a chunk is appended first and attended to then; a call that appends
/// nothing attends to what another layer has appended; causal() throws ShapeError where no sequence
/// holds as many tokens as q has and nothing sets the offset: the queries' own keys are not there
/// yet. Throws, Cost and Error: as for tensors.
template <class Q, class C, class O, class M = NoMask,
          std::enable_if_t<detail::is_cache_v<C> && detail::is_tensor_v<O>, int> = 0,
          class Extra = AttentionOutputs<detail::AccumulationOf<Q, C, O>>>
void scaled_dot_product_attention(const Q& q, const C& cache, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {}, const Extra& extra = {}) {
  const detail::KeyValueSource source = cache.source();
  const detail::TensorRef queries = detail::input(q);
  const PerBatch past = source.end - queries.shape.length;
  detail::attend<C::kForgets>("scaled_dot_product_attention", queries, source, &past,
                              detail::output<O>(out),
                              cache.mask_with(detail::checked_mask<4>(mask)), options,
                              detail::extra_outputs<detail::AccumulationOf<Q, C, O>>(extra));
}

/// The same, returning its results in buffers of its own.
template <class Q, class C, class M = NoMask,
          std::enable_if_t<detail::is_cache_v<C> && is_mask_v<M>, int> = 0>
AttentionResult<detail::ElementOf<Q>, detail::AccumulationOf<Q, C>> scaled_dot_product_attention(
    const Q& q, const C& cache, const M& mask = M(), const AttentionOptions& options = {},
    Want want = Want::output) {
  return detail::returned<detail::ElementOf<Q>, detail::AccumulationOf<Q, C>>(
      detail::input(q).shape, cache.longest_length(), cache.value_dim(), want,
      [&](auto& out, const auto& extra) {
        scaled_dot_product_attention(q, cache, out, mask, options, extra);
      });
}

template <class Q, class C, class Other,
          std::enable_if_t<
              detail::is_cache_v<C> && !detail::is_tensor_v<Other> && !is_mask_v<Other>, int> = 0,
          class... Rest>
void scaled_dot_product_attention(const Q&, const C&, const Other&, const Rest&...) {
  detail::refuse_neither_output_nor_mask<Other>();
}

/// How many bytes of options.workspace such a call needs: the most that any length of the cache can
/// need, so that a program may ask once, at the start. (A rolling cache whose ring has grown, by an
/// append longer than longest_append, may need more.) Queries of another length may need more or
/// less, and fewer of them more, since few rows take longer tiles of keys: ask for each that
/// occurs.
template <class Q, class C, class M = NoMask, std::enable_if_t<detail::is_cache_v<C>, int> = 0>
std::size_t attention_workspace_bytes(const Q& q, const C& cache, const M& mask = M(),
                                      const AttentionOptions& options = {}) {
  const detail::KeyValueSource source = cache.source();
  const detail::TensorRef queries = detail::input(q);
  const PerBatch past = source.end - queries.shape.length;
  return detail::workspace_bytes("attention_workspace_bytes", queries, source, &past,
                                 cache.mask_with(detail::checked_mask<3>(mask)), options);
}

}  // namespace ATTN_BUILD
}  // namespace attn

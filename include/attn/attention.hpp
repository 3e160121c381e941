// attn/attention.hpp - level 10: START HERE. Exact attention, tile by tile.
//
//   check shapes and options                        // once, before any write        detail/call/
//   for each (batch, group, block of rows):         // a work item                   detail/loop/
//     for keys in ranges(block of rows):            // masks say which keys can matter at all
//       if cover(block, keys) is none: continue     // asked before anything is fetched
//       k, v = rows.fetch(keys)                     // how keys and values lie       detail/rows/
//       for tile in tiles of the block:             // built once a block
//         s = form.scores(tile, k)                  // how a tile is computed        detail/forms/
//         mask.modify(s); if partial: mask.apply(s) // full tiles run no mask        masks/
//         step(tile, s, v)                          // softmax, and weights times v  detail/steps/
//     out = o / l                                   // and log-sum-exp, weights
//
// A group is the query heads that share their key and value head, and its rows are all their
// queries: prefill and decode are one loop, and GQA and MQA read each key and value once a group.
// The inner loops are micro-kernels, one copy an instruction set (detail/kernels/).
#pragma once

#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/loop/attend.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
inline namespace ATTN_BUILD {

/// out = softmax(mask(scale * q k^T)) v, exactly, for each batch and query head.
///
///   q      [B, Hq, Sq, Dk]
///   k      [B|1, Hk, Sk, Dk]   Hk divides Hq: query head h reads key head h / (Hq / Hk)
///   v      [B|1, Hv, Sk, Dv]   Hv divides Hq, likewise
///   out    [B, Hq, Sq, Dv]     overlaps no input
///   mask   any composition of the masks of mask.hpp; default: every key is seen
///   extra  views that are set receive the weights [B, Hq, Sq, Sk] and log-sum-exp [B, Hq, Sq, 1]
///
/// Order of operations: s = scale * (q . k), softcap, score functions and biases left to right,
/// mask, sink, softmax, dropout, times v. The element types of q, k, v and out may all differ; sums
/// are held in double if one of them is double, else in float, and rounded once.
///
/// Edge cases: a row that sees no key gets out 0, weights 0, log-sum-exp -infinity. A dropped key
/// is absent: NaN or infinity in it cannot reach the output. A key whose weight is below 2^-100
/// (double: 2^-1000) may count as one. Sk = 0 writes zeros; other sizes of 0 do nothing. A visible
/// score of NaN or +infinity makes its row NaN.
///
/// Throws: ShapeError, OptionError, before anything is written. What a user's lambda throws is
/// rethrown; out is then unspecified.
/// Cost: 4 B Hq Sq Sk (Dk + Dv) / 2 flops for the keys that masks leave; scratch of less than 2 MiB
/// a thread at any length; one allocation, none with options.workspace. Error: that of float (or
/// double) sums of Dk and Sk terms; exp within (4 + |s - m|) epsilon; what allow_bf16_weights adds,
/// options.hpp says. Source: A. Vaswani et al., "Attention is all you need" (2017); T. Dao et al.
/// (2022) for the tiles.
template <class Q, class K, class V, class O, class M = NoMask,
          class Extra = AttentionOutputs<detail::AccumulationOf<Q, K, V, O>>,
          std::enable_if_t<detail::is_tensor_v<O> && !detail::is_cache_v<K>, int> = 0>
void scaled_dot_product_attention(const Q& q, const K& k, const V& v, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {}, const Extra& extra = {}) {
  detail::attend("scaled_dot_product_attention", detail::input(q), detail::keys_and_values(k, v),
                 nullptr, detail::output<O>(out), detail::checked_mask<5>(mask), options,
                 detail::extra_outputs<detail::AccumulationOf<Q, K, V, O>>(extra));
}

/// The same, returning its results in buffers of its own: output in the element type of q, and what
/// `want` asks for.
template <class Q, class K, class V, class M = NoMask,
          std::enable_if_t<is_mask_v<M> && !detail::is_cache_v<K>, int> = 0>
AttentionResult<detail::ElementOf<Q>, detail::AccumulationOf<Q, K, V>> scaled_dot_product_attention(
    const Q& q, const K& k, const V& v, const M& mask = M(), const AttentionOptions& options = {},
    Want want = Want::output) {
  return detail::returned<detail::ElementOf<Q>, detail::AccumulationOf<Q, K, V>>(
      detail::input(q).shape, detail::input(k).shape.length, detail::input(v).shape.dim, want,
      [&](auto& out, const auto& extra) {
        scaled_dot_product_attention(q, k, v, out, mask, options, extra);
      });
}

template <class Q, class K, class V, class Other,
          std::enable_if_t<
              !detail::is_tensor_v<Other> && !is_mask_v<Other> && !detail::is_cache_v<K>, int> = 0,
          class... Rest>
void scaled_dot_product_attention(const Q&, const K&, const V&, const Other&, const Rest&...) {
  detail::refuse_neither_output_nor_mask<Other>();
}

/// How many bytes of options.workspace such a call needs, whatever the type of out and the extra
/// outputs, with the concurrency of options.executor. The memory needs no alignment.
/// Throws what the call would throw.
template <class Q, class K, class V, class M = NoMask,
          std::enable_if_t<!detail::is_cache_v<K>, int> = 0>
std::size_t attention_workspace_bytes(const Q& q, const K& k, const V& v, const M& mask = M(),
                                      const AttentionOptions& options = {}) {
  return detail::workspace_bytes("attention_workspace_bytes", detail::input(q),
                                 detail::keys_and_values(k, v), nullptr,
                                 detail::checked_mask<4>(mask), options);
}

}  // namespace ATTN_BUILD
}  // namespace attn

// attn/layers/head_transform.hpp - level 14: what a layer does to the heads of queries and keys
// between their projection and attention.
#pragma once

#include <optional>

#include "attn/layers/norm_weights.hpp"

namespace attn {

class RotaryEmbedding;  // layers/rotary.hpp

/// A property of a layer: each head of the queries and of the keys is normalised, then turned to
/// its position. Views: they own nothing. What they view outlives the layer.
///
///   forward, of one tensor    query i turns to position i + offset, key j to position j
///   forward, of three         likewise; the offset is Sk - Sq unless the call says otherwise
///   step, append              key i of sequence b turns to length(b) + i, length(b) being that
///                             before the call; keys of the cache have been turned already
///   step, attend              query i turns where masks see it: the last to the last key
///
/// The offset is that of the call's masks: options.query_offset, or what a causal mask says. A call
/// may give the positions of its tokens instead, one by one (TokenPositions): they turn the heads,
/// and masks go on to count tokens.
template <class T>
struct HeadTransform {
  /// Root-mean-square norms of head_dim factors, one for all heads (Qwen, Gemma). Unset: none.
  std::optional<RmsNormWeights<T>> query_norm, key_norm;
  /// Of the layer's head_dim. Null: queries and keys are not turned.
  const RotaryEmbedding* rotary = nullptr;
};

}  // namespace attn

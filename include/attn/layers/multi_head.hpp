// attn/layers/multi_head.hpp - level 17: MultiHeadAttention and MultiQueryAttention. They are one
// class with GroupedQueryAttention, and differ in how many key and value heads they project, which
// the query heads share.
#pragma once

#include <cstdint>

#include "attn/config.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/grouped_query.hpp"
#include "attn/layers/initialization.hpp"
#include "attn/layers/linear_weights.hpp"

namespace attn {

/// Multi-head attention (A. Vaswani et al. 2017): each query head has a key and a value head of its
/// own, num_kv_heads = num_heads. Everything else is GroupedQueryAttention's.
template <class T>
class MultiHeadAttention : public GroupedQueryAttention<T> {
 public:
  ATTN_ALWAYS_INLINE MultiHeadAttention(const AttentionConfig& config,
                                        const LinearWeights<T>& query, const LinearWeights<T>& key,
                                        const LinearWeights<T>& value,
                                        const LinearWeights<T>& output)
      : GroupedQueryAttention<T>("MultiHeadAttention", config, config.num_heads, query, key, value,
                                 output) {}
  ATTN_ALWAYS_INLINE MultiHeadAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention<T>("MultiHeadAttention", config, config.num_heads, seed,
                                 initialization) {}
  ATTN_ALWAYS_INLINE MultiHeadAttention(
      Index model_dim, Index num_heads, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : MultiHeadAttention(sizes(model_dim, num_heads), seed, initialization) {}

 private:
  ATTN_ALWAYS_INLINE static AttentionConfig sizes(Index model_dim, Index num_heads) {
    AttentionConfig config;
    config.model_dim = model_dim;
    config.num_heads = num_heads;
    return config;
  }
};

/// Multi-query attention (N. Shazeer 2019): all query heads share one key and one value head,
/// num_kv_heads = 1. Everything else is GroupedQueryAttention's.
template <class T>
class MultiQueryAttention : public GroupedQueryAttention<T> {
 public:
  ATTN_ALWAYS_INLINE MultiQueryAttention(const AttentionConfig& config,
                                         const LinearWeights<T>& query, const LinearWeights<T>& key,
                                         const LinearWeights<T>& value,
                                         const LinearWeights<T>& output)
      : GroupedQueryAttention<T>("MultiQueryAttention", config, 1, query, key, value, output) {}
  ATTN_ALWAYS_INLINE MultiQueryAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention<T>("MultiQueryAttention", config, 1, seed, initialization) {}
};

}  // namespace attn

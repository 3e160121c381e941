// attn/layers/attention_block.hpp - level 17: an attention layer with dropout, a residual and layer
// normalisation around it, as transformers stack them (normalised after the sum).
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/layers/block_pass.hpp"
#include "attn/detail/layers/layer_calls.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/grouped_query.hpp"
#include "attn/layers/initialization.hpp"
#include "attn/layers/norm_weights.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// What a block does: `evaluation` drops nothing, `training` does.
enum class BlockMode { evaluation, training };

/// A layer in a block:
///
///   out = LayerNorm(query + dropout([head(0) .. head(num_heads - 1)]) Wo^T + bo)
///
/// with heads of attention whose weights went through dropout too. Multi-head, multi-query or
/// grouped-query attention, as the layer's config says, with the layer's HeadTransform. A const
/// block may be used by many threads at once. In 16-bit types the result of each stage is rounded
/// to T: those of the layer, dropout, the sum and the normalisation.
template <class T>
class AttentionBlock {
 public:
  using Element = T;
  using Accumulation = AccumulationType<T>;
  static constexpr double kDropout = 0.1;

  /// Around a layer. `norm`: gamma and beta of model_dim elements, or none; they outlive the block.
  /// Throws: OptionError for a dropout outside [0, 1] or an epsilon below 0; ShapeError for a norm
  /// that is counted and not of model_dim elements.
  ATTN_ALWAYS_INLINE explicit AttentionBlock(GroupedQueryAttention<T> attention,
                                             double dropout = kDropout,
                                             const LayerNormWeights<T>& norm = {})
      : attention_(std::move(attention)),
        settings_(detail::check_settings<T>({dropout, norm}, attention_.config().model_dim)) {}

  /// With weights of its own, as GroupedQueryAttention's; gamma 1 and beta 0.
  ATTN_ALWAYS_INLINE AttentionBlock(const AttentionConfig& config, std::uint64_t seed,
                                    double dropout = kDropout,
                                    Initialization initialization = Initialization::linear_uniform)
      : AttentionBlock(GroupedQueryAttention<T>(config, seed, initialization), dropout) {}

  /// Self-attention: query = key = value = x. The arguments are those of the layer's forward.
  ///
  /// In BlockMode::training both dropouts draw from options.dropout.seed and offset: give every
  /// call another one. Their bits are independent of each other. In BlockMode::evaluation, the
  /// default, nothing is dropped; the bits are those of a block whose dropout is 0.
  ///
  /// Throws: ShapeError, OptionError, before anything is written. options.dropout.probability must
  /// be 0: the block's own is used. `positions`: as for the layer, whose rotary embedding turns.
  template <class X, class O, class M = NoMask, class Extra = AttentionOutputs<Accumulation>,
            std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const X& x, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {}, const Extra& extra = {},
                                  BlockMode mode = BlockMode::evaluation,
                                  const TokenPositions& positions = {}) const {
    detail::run_block(attention_.weights_, settings_, detail::layer_inputs<T>(x),
                      detail::layer_output<T, O>(out), detail::checked_mask<3>(mask), options,
                      detail::extra_outputs<Accumulation>(extra), mode == BlockMode::training,
                      {nullptr, positions, positions});
  }

  /// Cross-attention, or any other choice of inputs; query is added to the output.
  template <class Q, class K, class V, class O, class M = NoMask,
            class Extra = AttentionOutputs<Accumulation>,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const Q& query, const K& key, const V& value, O&& out,
                                  const M& mask = M(), const AttentionOptions& options = {},
                                  const Extra& extra = {}, BlockMode mode = BlockMode::evaluation,
                                  const TokenPositions& query_positions = {},
                                  const TokenPositions& key_positions = {}) const {
    detail::run_block(attention_.weights_, settings_, detail::layer_inputs<T>(query, key, value),
                      detail::layer_output<T, O>(out), detail::checked_mask<5>(mask), options,
                      detail::extra_outputs<Accumulation>(extra), mode == BlockMode::training,
                      {nullptr, query_positions, key_positions});
  }

  /// The layer inside: its config, its weights, and how many bytes of options.workspace a forward
  /// pass needs (the block's needs no more).
  ATTN_ALWAYS_INLINE const GroupedQueryAttention<T>& attention() const { return attention_; }
  ATTN_ALWAYS_INLINE double dropout() const { return settings_.dropout; }
  ATTN_ALWAYS_INLINE const LayerNormWeights<T>& norm() const { return settings_.norm; }

 private:
  GroupedQueryAttention<T> attention_;
  detail::BlockSettings<T> settings_;
};

}  // namespace attn

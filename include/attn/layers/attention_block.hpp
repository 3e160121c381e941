// attn/layers/attention_block.hpp - level 17: an attention layer with dropout, a residual and layer
// normalisation around it, as transformers stack them (normalised after the sum).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/layers/layer_pass.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/text.hpp"
#include "attn/executor.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/initialization.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// What a block does: `evaluation` drops nothing, `training` does.
enum class BlockMode { evaluation, training };

namespace detail {

/// What surrounds the layer of a block.
template <class T>
struct BlockSettings {
  double dropout = 0;
  LayerNormWeights<T> norm;
};

inline namespace ATTN_ERRORS {

template <class T>
BlockSettings<T> check_settings(const BlockSettings<T>& settings, Index model_dim) {
  CallShapes call("AttentionBlock");
  add_coefficients(call, "gamma", settings.norm.gamma, model_dim);
  add_coefficients(call, "beta", settings.norm.beta, model_dim);
  require_count(call, "gamma", settings.norm.gamma, "a feature", model_dim);
  require_count(call, "beta", settings.norm.beta, "a feature", model_dim);
  const double p = settings.dropout;
  if (!is_finite(p) || p < 0 || p > 1) {
    raise_option_error("AttentionBlock: dropout must lie within 0 and 1, got " + general(p));
  }
  if (!is_valid_epsilon(settings.norm.epsilon)) {
    raise_option_error("AttentionBlock: epsilon must be finite and 0 or more, got " +
                       general(settings.norm.epsilon));
  }
  return settings;
}

/// Dropout on the features [B, 1, S, D]: each is dropped or scaled up.
template <class T>
void drop_features(const Tensor4<T>& features, const Dropout& dropout, Executor* executor) {
  using A = AccumulationType<T>;
  const std::uint64_t threshold = dropout_threshold(dropout.probability);
  const A scale =
      dropout.probability < 1 ? static_cast<A>(1.0 / (1.0 - dropout.probability)) : A(0);
  const Index length = features.length();
  for_each_item(executor, worker_count(executor), features.batch() * length,
                [&](Index, Index item) {
                  const Index batch = item / length, row = item % length;
                  const RandomPlane plane(RandomPlane::Stream::block_features, dropout.seed,
                                          dropout.offset, batch, 0);
                  plane.for_each(row, 0, features.dim(), [&](Index column, std::uint32_t bits) {
                    T& value = features(batch, 0, row, column);
                    value = bits < threshold ? T(0) : round_to<T>(static_cast<A>(value) * scale);
                  });
                });
}

/// out = LayerNorm(out + residual), row by row.
template <class T>
void add_and_normalize(const Tensor4<T>& out, const Tensor4<const T>& residual,
                       const LayerNormWeights<T>& norm, Executor* executor) {
  using A = AccumulationType<T>;
  const Index length = out.length(), dim = out.dim();
  for_each_item(executor, worker_count(executor), out.batch() * length, [&](Index, Index item) {
    T* const row = &out(item / length, 0, item % length, 0);
    const T* const added = &residual(item / length, 0, item % length, 0);
    const Index stride = out.stride().dim, added_stride = residual.stride().dim;
    for (Index d = 0; d < dim; ++d) {
      T& value = row[d * stride];
      value = round_to<T>(static_cast<A>(value) + static_cast<A>(added[d * added_stride]));
    }
    normalize_row<A>(row, stride, dim, norm, row, stride);
  });
}

template <class T, class M>
void run_block(const LayerWeights<T>& layer, const BlockSettings<T>& settings,
               const LayerInputs<T>& inputs, const Tensor4<T>& out, const M& mask,
               AttentionOptions options, const AttentionOutputs<AccumulationType<T>>& extra,
               BlockMode mode) {
  LayerPass<T> pass("AttentionBlock::forward", layer, inputs);
  pass.set_outputs({out, extra, options.workspace});
  const Index dim = layer.config.model_dim;
  pass.require_apart("gamma of the block", row_of(settings.norm.gamma, dim));
  pass.require_apart("beta of the block", row_of(settings.norm.beta, dim));
  if (options.dropout.probability != 0) {
    pass.shapes().raise_option(
        "options.dropout.probability must be 0: the block has a dropout of its own, which "
        "BlockMode::training turns on; got " +
        general(options.dropout.probability));
  }
  if (mode == BlockMode::training) options.dropout.probability = settings.dropout;
  pass.prepare(mask, options);
  pass.set_rotary(nullptr);
  pass.allocate("attention().workspace_bytes");
  pass.project_inputs();
  pass.transform_heads(0);
  pass.attend();
  if (options.dropout.probability > 0) {
    drop_features(pass.heads(), options.dropout, pass.executor());
  }
  pass.project_output();
  add_and_normalize(out, inputs.query, settings.norm, pass.executor());
}

}  // namespace ATTN_ERRORS
}  // namespace detail

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
  /// be 0: the block's own is used.
  template <class X, class O, class M = NoMask, std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const X& x, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {},
                                  const AttentionOutputs<Accumulation>& extra = {},
                                  BlockMode mode = BlockMode::evaluation) const {
    static_assert(
        is_mask_v<M>,
        "attn: argument 3 of forward must be a mask of attn/mask.hpp (self-attention), or "
        "the third of query, key, value");
    detail::run_block(attention_.weights_, settings_, detail::layer_inputs<T>(x, x, x, true),
                      detail::layer_output<T>(out), mask, options, extra, mode);
  }

  /// Cross-attention, or any other choice of inputs; query is added to the output.
  template <class Q, class K, class V, class O, class M = NoMask,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const Q& query, const K& key, const V& value, O&& out,
                                  const M& mask = M(), const AttentionOptions& options = {},
                                  const AttentionOutputs<Accumulation>& extra = {},
                                  BlockMode mode = BlockMode::evaluation) const {
    static_assert(is_mask_v<M>, "attn: argument 5 of forward must be a mask of attn/mask.hpp");
    detail::run_block(attention_.weights_, settings_,
                      detail::layer_inputs<T>(query, key, value, false),
                      detail::layer_output<T>(out), mask, options, extra, mode);
  }

  /// The layer inside: its config, its weights, and how many bytes of options.workspace a forward
  /// pass needs (the block's needs no more).
  const GroupedQueryAttention<T>& attention() const { return attention_; }
  double dropout() const { return settings_.dropout; }
  const LayerNormWeights<T>& norm() const { return settings_.norm; }

 private:
  GroupedQueryAttention<T> attention_;
  detail::BlockSettings<T> settings_;
};

}  // namespace attn

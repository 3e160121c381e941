// attn/layers/grouped_query.hpp - level 16: attention of several heads as a layer: projections,
// attention, output projection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/layers/layer_arguments.hpp"
#include "attn/detail/layers/layer_calls.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/head_transform.hpp"
#include "attn/layers/initialization.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// Attention whose query heads share num_kv_heads key and value heads (GQA; J. Ainslie et al.
/// 2023): with heads h and h' = floor(h / (num_heads / num_kv_heads)),
///
///   head(h) = attention(query Wq_h^T + bq_h, key Wk_h'^T + bk_h', value Wv_h'^T + bv_h')
///   out     = [head(0) .. head(num_heads - 1)] Wo^T + bo
///
/// Heads are slices by strides: nothing is split or concatenated by copying. A const layer may be
/// used by many threads at once. In 16-bit types the result of each stage (queries, keys, values,
/// heads, out) is rounded to T; sums are held in float.
template <class T>
class GroupedQueryAttention {
 public:
  using Element = T;
  using Accumulation = AccumulationType<T>;

  /// Over weights that the caller owns; they outlive the layer. Query: [1, 1, num_heads * head_dim,
  /// model_dim]; key and value: [1, 1, num_kv_heads * head_dim (value: value_dim), key_input_dim
  /// (value: value_input_dim)]; output: [1, 1, model_dim, num_heads * value_dim]. Rows are head
  /// after head. Throws: OptionError for the config, ShapeError for the weights and biases.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const AttentionConfig& config,
                                           const LinearWeights<T>& query,
                                           const LinearWeights<T>& key,
                                           const LinearWeights<T>& value,
                                           const LinearWeights<T>& output)
      : GroupedQueryAttention("GroupedQueryAttention", config, 0, query, key, value, output) {}

  /// With weights of its own: the same for the same seed on every machine. Throws: OptionError.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention("GroupedQueryAttention", config, 0, seed, initialization) {}

  /// Self-attention: out = the layer's formula with query = key = value = x.
  ///
  ///   x        [B, 1, S, model_dim]
  ///   out      [B, 1, S, model_dim]      overlaps neither x nor the weights
  ///   mask     any composition of the masks of mask.hpp
  ///   options  those of scaled_dot_product_attention; the executor also runs the projections, and
  ///            the workspace (workspace_bytes tells its size) holds the activations as well
  ///   extra    views that are set receive the weights [B, num_heads, S, S] and the log-sum-exp
  ///            [B, num_heads, S, 1]
  ///   rotary   outranks that of the layer's head transform; null: the layer's, if it has one
  ///   positions  [B|1, 1, S, 1 or sections of the rotary embedding]: what it turns the tokens to;
  ///            masks go on to count tokens. Not given: what HeadTransform says
  ///
  /// Sizes of 0: no batch or no query does nothing. Throws: ShapeError, OptionError, before
  /// anything is written. Cost: 2 flops for each weight and token, and those of attention; one
  /// allocation, none with options.workspace. A token's bits do not depend on the batch size, the
  /// executor or what it cannot attend to.
  template <class X, class O, class M = NoMask, class Extra = AttentionOutputs<Accumulation>,
            std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const X& x, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {}, const Extra& extra = {},
                                  const RotaryEmbedding* rotary = nullptr,
                                  const TokenPositions& positions = {}) const {
    detail::run_layer(name_, weights_, detail::layer_inputs<T>(x), detail::layer_output<T, O>(out),
                      detail::checked_mask<3>(mask), options,
                      detail::extra_outputs<Accumulation>(extra), {rotary, positions, positions});
  }

  /// Cross-attention, or any other choice of inputs.
  ///
  ///   query    [B, 1, Sq, model_dim]
  ///   key      [B|1, 1, Sk, key_input_dim]
  ///   value    [B|1, 1, Sk, value_input_dim]
  ///   out      [B, 1, Sq, model_dim]
  ///   extra    weights [B, num_heads, Sq, Sk], log-sum-exp [B, num_heads, Sq, 1]
  ///
  /// Sk = 0 gives the bias of the output projection. Key 0 stands at 0, and query 0 at the offset
  /// of the call, Sk - Sq unless it says otherwise: what a rotary embedding turns them to, where
  /// query_positions [B|1, 1, Sq, .] and key_positions [batch of key|1, 1, Sk, .] are not given.
  /// For the rest, see the other form.
  template <class Q, class K, class V, class O, class M = NoMask,
            class Extra = AttentionOutputs<Accumulation>,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const Q& query, const K& key, const V& value, O&& out,
                                  const M& mask = M(), const AttentionOptions& options = {},
                                  const Extra& extra = {}, const RotaryEmbedding* rotary = nullptr,
                                  const TokenPositions& query_positions = {},
                                  const TokenPositions& key_positions = {}) const {
    detail::run_layer(name_, weights_, detail::layer_inputs<T>(query, key, value),
                      detail::layer_output<T, O>(out), detail::checked_mask<5>(mask), options,
                      detail::extra_outputs<Accumulation>(extra),
                      {rotary, query_positions, key_positions});
  }

  /// How many bytes of options.workspace such a forward pass needs, whatever its extra outputs,
  /// with the concurrency of options.executor. Throws what the pass would throw.
  template <class X, class M = NoMask, std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE std::size_t workspace_bytes(const X& x, const M& mask = M(),
                                                 const AttentionOptions& options = {}) const {
    return detail::layer_workspace_bytes(name_, weights_, detail::layer_inputs<T>(x),
                                         detail::checked_mask<2>(mask), options);
  }
  template <class Q, class K, class V, class M = NoMask,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE std::size_t workspace_bytes(const Q& query, const K& key, const V& value,
                                                 const M& mask = M(),
                                                 const AttentionOptions& options = {}) const {
    return detail::layer_workspace_bytes(name_, weights_,
                                         detail::layer_inputs<T>(query, key, value),
                                         detail::checked_mask<4>(mask), options);
  }

  /// Decoding: projects x, turns queries and keys to their positions, appends keys and values to
  /// the cache, and attends to all that it holds then, as scaled_dot_product_attention over it
  /// does.
  ///
  ///   x        [B, 1, S, model_dim]      the next S tokens of each of the B sequences of the cache
  ///   cache    any of kv_cache.hpp, of num_kv_heads, head_dim and value_dim, of any element type
  ///   out      [B, 1, S, model_dim]      overlaps neither x, the weights nor the cache
  ///   rotary   outranks the layer's: turns token i of sequence b to position length(b) + i,
  ///            length(b) being that before
  ///   positions  [B|1, 1, S, 1 or sections]: what it turns the S tokens to instead. Text behind an
  ///            image, many of whose tokens share a position, does not stand at length(b)
  ///
  /// A prompt may come in chunks of any length: the results agree within rounding, and are the same
  /// bits for the same chunks, whatever the batch size and the executor. Prompts of different
  /// lengths are padded before their first token, as the form with counts says; or behind their
  /// end, under causal(), and the padding is taken back with cache.truncate(lengths), which a
  /// rolling cache allows if its longest_append counts the padding. Nothing is appended if anything
  /// is wrong, save where a user's lambda throws, which is called later. Throws, Cost: as forward,
  /// and ShapeError if the tokens do not fit into the cache; step_workspace_bytes tells the size of
  /// options.workspace.
  template <class X, class Cache, class O, class M = NoMask,
            std::enable_if_t<!std::is_convertible_v<const M&, PerBatch>, int> = 0>
  ATTN_ALWAYS_INLINE void step(const X& x, Cache& cache, O&& out, const M& mask = M(),
                               const AttentionOptions& options = {},
                               const RotaryEmbedding* rotary = nullptr,
                               const TokenPositions& positions = {}) const {
    static_assert(!std::is_const_v<Cache>, "attn: step appends to its cache; attend does not");
    detail::require_cache<T, Cache>();
    detail::run_cached(name_, "step", weights_, detail::layer_inputs<T>(x), cache,
                       detail::layer_output<T, O>(out), detail::checked_mask<4>(mask), options,
                       {rotary, positions, positions});
  }

  /// The same for prompts that are padded on the left: of sequence b the last counts[b] tokens are
  /// real, as for cache.append(k, v, counts), and those before leave no trace in the cache. They
  /// see no key and are seen by none, whatever they hold, and their rows of out are the bias of the
  /// output projection. Real tokens stand at length(b) and on, or at their positions of
  /// `positions`, as if they had come alone. Throws: ShapeError too, unless counts holds one number
  /// or one a sequence, each within 0 and S.
  template <class X, class Cache, class O, class M = NoMask>
  ATTN_ALWAYS_INLINE void step(const X& x, Cache& cache, O&& out, PerBatch counts,
                               const M& mask = M(), const AttentionOptions& options = {},
                               const RotaryEmbedding* rotary = nullptr,
                               const TokenPositions& positions = {}) const {
    static_assert(!std::is_const_v<Cache>, "attn: step appends to its cache; attend does not");
    detail::require_cache<T, Cache>();
    detail::run_padded_step(name_, weights_, detail::layer_inputs<T>(x), cache,
                            detail::layer_output<T, O>(out), counts, detail::checked_mask<5>(mask),
                            options, {rotary, positions, positions});
  }

  /// Attends to a cache without appending: cross-attention to what append has stored, or a layer
  /// that shares the keys and values of another one, whose step comes first. The last query stands
  /// at the last key. For the arguments, see step.
  template <class X, class Cache, class O, class M = NoMask>
  ATTN_ALWAYS_INLINE void attend(const X& x, const Cache& cache, O&& out, const M& mask = M(),
                                 const AttentionOptions& options = {},
                                 const RotaryEmbedding* rotary = nullptr,
                                 const TokenPositions& positions = {}) const {
    detail::require_cache<T, Cache>();
    detail::run_cached(name_, "attend", weights_,
                       detail::queries_alone(config(), detail::layer_input<T>(x)), cache,
                       detail::layer_output<T, O>(out), detail::checked_mask<4>(mask), options,
                       {rotary, positions, {}});
  }

  /// Projects keys and values and appends them, without attending: the memory of cross-attention.
  ///
  ///   key      [B, 1, S, key_input_dim]
  ///   value    [B, 1, S, value_input_dim]
  template <class K, class V, class Cache>
  ATTN_ALWAYS_INLINE void append(const K& key, const V& value, Cache& cache,
                                 const AttentionOptions& options = {},
                                 const RotaryEmbedding* rotary = nullptr,
                                 const TokenPositions& key_positions = {}) const {
    detail::require_cache<T, Cache>();
    const detail::LayerInputs<T> inputs =
        detail::keys_alone(config(), detail::layer_input<T>(key), detail::layer_input<T>(value));
    detail::run_cached(name_, "append", weights_, inputs, cache,
                       Tensor4<T>(nullptr, inputs.query.shape()), no_mask(), options,
                       {rotary, {}, key_positions});
  }

  /// How many bytes of options.workspace a step of such an x needs, at every length that the cache
  /// can take: size it once. Chunks of fewer tokens may need more: ask for each that there will be.
  /// It serves attend and append too.
  template <class X, class Cache, class M = NoMask>
  ATTN_ALWAYS_INLINE std::size_t step_workspace_bytes(const X& x, const Cache& cache,
                                                      const M& mask = M(),
                                                      const AttentionOptions& options = {}) const {
    detail::require_cache<T, Cache>();
    return detail::step_workspace_bytes(name_, weights_, detail::layer_inputs<T>(x), cache,
                                        detail::checked_mask<3>(mask), options);
  }

  /// A layer of the key and value heads [first, first + count) and their query heads, for heads
  /// that are computed in several places: views of this layer's weights, which live on with it
  /// where they are its own. The outputs of parts that hold each head once add up to this layer's,
  /// within the rounding of the sum: the part of head 0 alone has the output bias. Where the
  /// weights of other heads are not at hand, make such a layer of fewer heads, with head_dim in its
  /// config.
  ///
  /// Heads count from 0 in a part: in its caches, slopes, sinks, head scales, masks and weights,
  /// and in the bits of dropout. Give alibi the part of the model's slopes, Span(slopes.data() +
  /// first * g, count * g), g = num_heads / num_kv_heads: its default is another. The HeadTransform
  /// is kept. Throws: ShapeError for heads that are not among those of the layer, or none.
  ATTN_ALWAYS_INLINE GroupedQueryAttention heads(Index first, Index count) const {
    GroupedQueryAttention part = *this;
    part.weights_ = detail::weights_of_heads(name_, weights_, first, count);
    return part;
  }

  /// What every pass does to the heads of queries and keys: see HeadTransform. Throws ShapeError
  /// for norms that are counted and not of head_dim factors or a rotary embedding of other heads,
  /// OptionError for an epsilon below 0; then nothing changes. Not while other threads use the
  /// layer.
  ATTN_ALWAYS_INLINE void set_head_transform(const HeadTransform<T>& transform) {
    set_transform("set_head_transform", transform);
  }
  /// Its norms alone.
  ATTN_ALWAYS_INLINE void set_query_key_norm(const RmsNormWeights<T>& query,
                                             const RmsNormWeights<T>& key) {
    set_transform("set_query_key_norm", {query, key, weights_.transform.rotary});
  }
  ATTN_ALWAYS_INLINE const HeadTransform<T>& head_transform() const { return weights_.transform; }

  /// The sizes, with all defaults filled in.
  ATTN_ALWAYS_INLINE const AttentionConfig& config() const { return weights_.config; }
  /// The projections, for saving and looking: views that live as long as the layer (or, over the
  /// caller's weights, as long as those).
  ATTN_ALWAYS_INLINE const LinearWeights<T>& query_weights() const { return weights_.query; }
  ATTN_ALWAYS_INLINE const LinearWeights<T>& key_weights() const { return weights_.key; }
  ATTN_ALWAYS_INLINE const LinearWeights<T>& value_weights() const { return weights_.value; }
  ATTN_ALWAYS_INLINE const LinearWeights<T>& output_weights() const { return weights_.output; }

 protected:
  /// For the classes that fix the number of key and value heads; 0: any.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const char* name, const AttentionConfig& config,
                                           Index kv_heads, const LinearWeights<T>& query,
                                           const LinearWeights<T>& key,
                                           const LinearWeights<T>& value,
                                           const LinearWeights<T>& output)
      : name_(name),
        weights_(detail::view_weights(name, detail::resolve_config(name, config, kv_heads), query,
                                      key, value, output)) {}
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const char* name, const AttentionConfig& config,
                                           Index kv_heads, std::uint64_t seed,
                                           Initialization initialization)
      : name_(name),
        weights_(detail::draw_weights<T>(detail::resolve_config(name, config, kv_heads), seed,
                                         initialization, owned_)) {}

 private:
  template <class>
  friend class AttentionBlock;

  ATTN_ALWAYS_INLINE void set_transform(const char* function, const HeadTransform<T>& transform) {
    detail::check_transform({name_, function}, transform, config().head_dim);
    weights_.transform = transform;
  }

  const char* name_;               // of the class, as errors spell it
  detail::OwnedWeights<T> owned_;  // before weights_, which may view it
  detail::LayerWeights<T> weights_;
};

}  // namespace attn

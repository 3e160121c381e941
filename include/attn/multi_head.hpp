// attn/multi_head.hpp - level 5: multi-head attention as a layer: projections, attention, output
// projection. MultiHeadAttention, MultiQueryAttention and GroupedQueryAttention are one class; they
// differ in how many key and value heads they project, which the query heads share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/attention.hpp"
#include "attn/attention_config.hpp"
#include "attn/config.hpp"
#include "attn/detail/call_shapes.hpp"
#include "attn/detail/layer_pass.hpp"
#include "attn/detail/rows.hpp"
#include "attn/detail/tensor_ref.hpp"
#include "attn/linear.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// How a layer that owns its weights fills them.
enum class Initialization {
  linear_uniform,  ///< as PyTorch's Linear: weight and bias uniform within 1 / sqrt(in)
  xavier_uniform  ///< weight uniform within sqrt(6 / (in + out)), bias 0. X. Glorot, Y. Bengio 2010
};

namespace detail {

/// Weights and biases of a layer in one block, which its copies share: nobody changes them.
template <class T>
using OwnedWeights = std::shared_ptr<const Tensor4Buffer<T>>;

/// A named layer: what its errors call it.
struct LayerNames {
  const char* layer;
  const char* forward;
  const char* workspace_bytes;
};

inline namespace ATTN_ERRORS {

/// Checks weights that the caller owns against the config.
template <class T>
LayerWeights<T> view_weights(const char* layer, const AttentionConfig& config,
                             const LinearWeights<T>& query, const LinearWeights<T>& key,
                             const LinearWeights<T>& value, const LinearWeights<T>& output) {
  require_element<T>();
  CallShapes shapes(layer);
  shapes.add_input("query weight", TensorRef(query.weight));
  shapes.add_input("key weight", TensorRef(key.weight));
  shapes.add_input("value weight", TensorRef(value.weight));
  shapes.add_input("output weight", TensorRef(output.weight));
  const Index heads = config.num_heads, kv_heads = config.num_kv_heads;
  const auto fits = [](const LinearWeights<T>& weights, Index out, Index in) {
    return weights.weight.shape() == Shape4{1, 1, out, in};
  };
  shapes.require(fits(query, heads * config.head_dim, config.model_dim),
                 "query weight must be [1, 1, num_heads * head_dim, model_dim]");
  shapes.require(fits(key, kv_heads * config.head_dim, config.key_input_dim),
                 "key weight must be [1, 1, num_kv_heads * head_dim, key_input_dim]");
  shapes.require(fits(value, kv_heads * config.value_dim, config.value_input_dim),
                 "value weight must be [1, 1, num_kv_heads * value_dim, value_input_dim]");
  shapes.require(fits(output, config.model_dim, heads * config.value_dim),
                 "output weight must be [1, 1, model_dim, num_heads * value_dim]");
  return LayerWeights<T>{config, query, key, value, output};
}

/// Draws weights; sets `owned` to the memory that the result views.
template <class T>
LayerWeights<T> draw_weights(const AttentionConfig& config, std::uint64_t seed,
                             Initialization initialization, OwnedWeights<T>& owned) {
  require_element<T>();
  const Index heads = config.num_heads, kv_heads = config.num_kv_heads;
  const Index out[] = {heads * config.head_dim, kv_heads * config.head_dim,
                       kv_heads * config.value_dim, config.model_dim};
  const Index in[] = {config.model_dim, config.key_input_dim, config.value_input_dim,
                      heads * config.value_dim};
  Index size = 0;
  for (int i = 0; i < 4; ++i) size += out[i] * (in[i] + (config.bias ? 1 : 0));
  Tensor4Buffer<T> memory(Shape4{1, 1, 1, size});

  T* next = memory.data();
  const auto draw = [&](int stream, Index count, double limit) {
    const UniformSequence sequence(seed, static_cast<std::uint64_t>(stream));
    T* const first = next;
    for (Index i = 0; i < count; ++i) first[i] = round_to<T>(sequence.at(i, limit));
    next += count;
    return first;
  };
  LayerWeights<T> weights{config, {}, {}, {}, {}};
  LinearWeights<T>* const parts[] = {&weights.query, &weights.key, &weights.value, &weights.output};
  for (int i = 0; i < 4; ++i) {
    const bool xavier = initialization == Initialization::xavier_uniform;
    const double limit = xavier ? std::sqrt(6.0 / static_cast<double>(in[i] + out[i]))
                                : 1 / std::sqrt(static_cast<double>(in[i]));
    parts[i]->weight =
        Tensor4<const T>(draw(2 * i, out[i] * in[i], limit), Shape4{1, 1, out[i], in[i]});
    if (config.bias) parts[i]->bias = draw(2 * i + 1, out[i], xavier ? 0 : limit);
  }
  owned = std::make_shared<const Tensor4Buffer<T>>(std::move(memory));  // its data stay in place
  return weights;
}

/// A whole forward pass.
template <class T, class M>
void run_layer(const LayerNames& names, const LayerWeights<T>& layer, const LayerInputs<T>& inputs,
               const Tensor4<T>& out, const M& mask, const AttentionOptions& options,
               const AttentionOutputs<AccumulationType<T>>& extra) {
  LayerPass<T> pass(names.forward, layer, inputs);
  pass.set_outputs(out, extra);
  pass.prepare(mask, options);
  pass.allocate(names.workspace_bytes);
  pass.project_inputs();
  pass.attend();
  pass.project_output();
}

template <class T, class M>
std::size_t layer_workspace_bytes(const LayerNames& names, const LayerWeights<T>& layer,
                                  const LayerInputs<T>& inputs, const M& mask,
                                  const AttentionOptions& options) {
  LayerPass<T> pass(names.workspace_bytes, layer, inputs);
  pass.prepare(mask, options);
  return pass.bytes() + Arena::kAlignment;
}

}  // namespace ATTN_ERRORS

/// Arguments of a layer's forward as views, with their types checked.
template <class T, class Q, class K, class V>
LayerInputs<T> layer_inputs(const Q& query, const K& key, const V& value, bool is_self) {
  static_assert(is_tensor_v<Q> && is_tensor_v<K> && is_tensor_v<V>,
                "attn: the inputs of a layer must be attn::Tensor4 views (or Tensor4Buffer); make "
                "one of (batch, length, dim) memory with attn::bsd, of a matrix with attn::view");
  static_assert(std::is_same_v<ElementOf<Q>, T> && std::is_same_v<ElementOf<K>, T> &&
                    std::is_same_v<ElementOf<V>, T>,
                "attn: the inputs of a layer must have the element type of its weights");
  return LayerInputs<T>{ArgumentOf<Q>::view(query), ArgumentOf<K>::view(key),
                        ArgumentOf<V>::view(value), is_self};
}
template <class T, class O>
Tensor4<T> layer_output(O&& out) {
  static_assert(is_tensor_v<O>,
                "attn: out of a layer must be an attn::Tensor4 view (or Tensor4Buffer)");
  static_assert(std::is_same_v<typename decltype(ArgumentOf<O>::view(out))::Element, T>,
                "attn: out of a layer must have the element type of its weights, not const");
  return ArgumentOf<O>::view(out);
}

}  // namespace detail

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
  /// after head. Throws: OptionError for the config, ShapeError for the weights.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const AttentionConfig& config,
                                           const LinearWeights<T>& query,
                                           const LinearWeights<T>& key,
                                           const LinearWeights<T>& value,
                                           const LinearWeights<T>& output)
      : GroupedQueryAttention(kNames, config, 0, query, key, value, output) {}

  /// With weights of its own: the same for the same seed on every machine. Throws: OptionError.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention(kNames, config, 0, seed, initialization) {}

  /// Self-attention: out = the layer's formula with query = key = value = x.
  ///
  ///   x        [B, 1, S, model_dim]
  ///   out      [B, 1, S, model_dim]      overlaps neither x nor the weights
  ///   mask     any composition of the masks of mask.hpp
  ///   options  those of scaled_dot_product_attention; the executor also runs the projections, and
  ///            the workspace (workspace_bytes tells its size) holds the activations as well
  ///   extra    views that are set receive the weights [B, num_heads, S, S] and the log-sum-exp
  ///            [B, num_heads, S, 1]
  ///
  /// Sizes of 0: no batch or no query does nothing. Throws: ShapeError, OptionError, before
  /// anything is written. Cost: 2 flops for each weight and token, and those of attention; one
  /// allocation, none with options.workspace. A token's bits do not depend on the batch size, the
  /// executor or what it cannot attend to.
  template <class X, class O, class M = NoMask, std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const X& x, O&& out, const M& mask = M(),
                                  const AttentionOptions& options = {},
                                  const AttentionOutputs<Accumulation>& extra = {}) const {
    static_assert(
        is_mask_v<M>,
        "attn: argument 3 of forward must be a mask of attn/mask.hpp (self-attention), or "
        "the third of query, key, value");
    detail::run_layer(names_, weights_, detail::layer_inputs<T>(x, x, x, true),
                      detail::layer_output<T>(out), mask, options, extra);
  }

  /// Cross-attention, or any other choice of inputs.
  ///
  ///   query    [B, 1, Sq, model_dim]
  ///   key      [B|1, 1, Sk, key_input_dim]
  ///   value    [B|1, 1, Sk, value_input_dim]
  ///   out      [B, 1, Sq, model_dim]
  ///   extra    weights [B, num_heads, Sq, Sk], log-sum-exp [B, num_heads, Sq, 1]
  ///
  /// Sk = 0 gives the bias of the output projection. For the rest, see the other form.
  template <class Q, class K, class V, class O, class M = NoMask,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void forward(const Q& query, const K& key, const V& value, O&& out,
                                  const M& mask = M(), const AttentionOptions& options = {},
                                  const AttentionOutputs<Accumulation>& extra = {}) const {
    static_assert(is_mask_v<M>, "attn: argument 5 of forward must be a mask of attn/mask.hpp");
    detail::run_layer(names_, weights_, detail::layer_inputs<T>(query, key, value, false),
                      detail::layer_output<T>(out), mask, options, extra);
  }

  /// How many bytes of options.workspace such a forward pass needs, whatever its extra outputs,
  /// with the concurrency of options.executor. Throws what the pass would throw.
  template <class X, class M = NoMask, std::enable_if_t<!detail::is_tensor_v<M>, int> = 0>
  ATTN_ALWAYS_INLINE std::size_t workspace_bytes(const X& x, const M& mask = M(),
                                                 const AttentionOptions& options = {}) const {
    return detail::layer_workspace_bytes(names_, weights_, detail::layer_inputs<T>(x, x, x, true),
                                         mask, options);
  }
  template <class Q, class K, class V, class M = NoMask,
            std::enable_if_t<detail::is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE std::size_t workspace_bytes(const Q& query, const K& key, const V& value,
                                                 const M& mask = M(),
                                                 const AttentionOptions& options = {}) const {
    return detail::layer_workspace_bytes(
        names_, weights_, detail::layer_inputs<T>(query, key, value, false), mask, options);
  }

  /// The sizes, with all defaults filled in.
  const AttentionConfig& config() const { return weights_.config; }
  /// The projections, for saving and looking: views that live as long as the layer (or, over the
  /// caller's weights, as long as those).
  const LinearWeights<T>& query_weights() const { return weights_.query; }
  const LinearWeights<T>& key_weights() const { return weights_.key; }
  const LinearWeights<T>& value_weights() const { return weights_.value; }
  const LinearWeights<T>& output_weights() const { return weights_.output; }

 protected:
  /// For the classes that fix the number of key and value heads; 0: any.
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const detail::LayerNames& names,
                                           const AttentionConfig& config, Index kv_heads,
                                           const LinearWeights<T>& query,
                                           const LinearWeights<T>& key,
                                           const LinearWeights<T>& value,
                                           const LinearWeights<T>& output)
      : names_(names),
        weights_(detail::view_weights(names.layer,
                                      detail::resolve_config(names.layer, config, kv_heads), query,
                                      key, value, output)) {}
  ATTN_ALWAYS_INLINE GroupedQueryAttention(const detail::LayerNames& names,
                                           const AttentionConfig& config, Index kv_heads,
                                           std::uint64_t seed, Initialization initialization)
      : names_(names),
        weights_(detail::draw_weights<T>(detail::resolve_config(names.layer, config, kv_heads),
                                         seed, initialization, owned_)) {}

 private:
  template <class>
  friend class AttentionBlock;

  static constexpr detail::LayerNames kNames = {"GroupedQueryAttention",
                                                "GroupedQueryAttention::forward",
                                                "GroupedQueryAttention::workspace_bytes"};

  detail::LayerNames names_;
  detail::OwnedWeights<T> owned_;  // before weights_, which may view it
  detail::LayerWeights<T> weights_;
};

/// Multi-head attention (A. Vaswani et al. 2017): each query head has a key and a value head of its
/// own, num_kv_heads = num_heads. Everything else is GroupedQueryAttention's.
template <class T>
class MultiHeadAttention : public GroupedQueryAttention<T> {
 public:
  ATTN_ALWAYS_INLINE MultiHeadAttention(const AttentionConfig& config,
                                        const LinearWeights<T>& query, const LinearWeights<T>& key,
                                        const LinearWeights<T>& value,
                                        const LinearWeights<T>& output)
      : GroupedQueryAttention<T>(kNames, config, config.num_heads, query, key, value, output) {}
  ATTN_ALWAYS_INLINE MultiHeadAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention<T>(kNames, config, config.num_heads, seed, initialization) {}
  ATTN_ALWAYS_INLINE MultiHeadAttention(
      Index model_dim, Index num_heads, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : MultiHeadAttention(sizes(model_dim, num_heads), seed, initialization) {}

 private:
  static AttentionConfig sizes(Index model_dim, Index num_heads) {
    AttentionConfig config;
    config.model_dim = model_dim;
    config.num_heads = num_heads;
    return config;
  }
  static constexpr detail::LayerNames kNames = {"MultiHeadAttention", "MultiHeadAttention::forward",
                                                "MultiHeadAttention::workspace_bytes"};
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
      : GroupedQueryAttention<T>(kNames, config, 1, query, key, value, output) {}
  ATTN_ALWAYS_INLINE MultiQueryAttention(
      const AttentionConfig& config, std::uint64_t seed,
      Initialization initialization = Initialization::linear_uniform)
      : GroupedQueryAttention<T>(kNames, config, 1, seed, initialization) {}

 private:
  static constexpr detail::LayerNames kNames = {"MultiQueryAttention",
                                                "MultiQueryAttention::forward",
                                                "MultiQueryAttention::workspace_bytes"};
};

}  // namespace attn

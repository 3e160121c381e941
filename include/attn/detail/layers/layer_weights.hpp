// attn/detail/layers/layer_weights.hpp - level 15: the weights of an attention layer, the caller's
// or its own.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/layers/layer_pass.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/linear.hpp"
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
  const LinearWeights<T>* const parts[] = {&query, &key, &value, &output};
  const char* const biases[] = {"query bias", "key bias", "value bias", "output bias"};
  for (int i = 0; i < 4; ++i) {
    const Index rows = parts[i]->weight.length();
    add_coefficients(shapes, biases[i], parts[i]->bias, rows);
    require_count(shapes, biases[i], parts[i]->bias, "a row of its weight", rows);
  }
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
    if (config.bias) {
      parts[i]->bias = Span<const T>(draw(2 * i + 1, out[i], xavier ? 0 : limit), out[i]);
    }
  }
  owned = std::make_shared<const Tensor4Buffer<T>>(std::move(memory));  // its data stay in place
  return weights;
}

}  // namespace ATTN_ERRORS
}  // namespace detail
}  // namespace attn

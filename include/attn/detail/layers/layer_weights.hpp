// attn/detail/layers/layer_weights.hpp - level 15: what an attention layer holds: its weights, the
// caller's or its own, and the transform of its heads.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/projection/layer_sizes.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/error.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/coefficients.hpp"
#include "attn/layers/head_transform.hpp"
#include "attn/layers/initialization.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/random.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

/// What a layer knows: its sizes, with all defaults filled in, its four projections, and what it
/// does to heads.
template <class T>
struct LayerWeights {
  AttentionConfig config;
  LinearWeights<T> query, key, value, output;
  HeadTransform<T> transform = {};
};

/// Weights and biases of a layer in one block, which its copies share: nobody changes them.
template <class T>
using OwnedWeights = std::shared_ptr<const Tensor4Buffer<T>>;

inline namespace ATTN_BUILD {

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
  shapes.expect(fits(query, heads * config.head_dim, config.model_dim),
                "query weight must be [1, 1, num_heads * head_dim, model_dim]");
  shapes.expect(fits(key, kv_heads * config.head_dim, config.key_input_dim),
                "key weight must be [1, 1, num_kv_heads * head_dim, key_input_dim]");
  shapes.expect(fits(value, kv_heads * config.value_dim, config.value_input_dim),
                "value weight must be [1, 1, num_kv_heads * value_dim, value_input_dim]");
  shapes.expect(fits(output, config.model_dim, heads * config.value_dim),
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

/// The rows [first, first + count) of a projection.
template <class T>
LinearWeights<T> rows_of_weights(const LinearWeights<T>& weights, Index first, Index count) {
  LinearWeights<T> rows{weights.weight.slice_length(first, count), {}};
  const Coefficients<T>& bias = weights.bias;
  if (bias.data() == nullptr) return rows;
  const T* const first_bias = bias.data() + first;
  rows.bias = bias.is_counted() ? Coefficients<T>(Span<const T>(first_bias, count))
                                : Coefficients<T>(first_bias);
  return rows;
}

/// What a layer of the key and value heads [first, first + count) and their query heads knows:
/// views of the whole layer's weights.
template <class T>
LayerWeights<T> weights_of_heads(const char* owner, const LayerWeights<T>& whole, Index first,
                                 Index count) {
  const AttentionConfig& c = whole.config;
  if (first < 0 || count < 1 || count > c.num_kv_heads || first > c.num_kv_heads - count) {
    raise_shape_error(std::string(owner) + "::heads: there must be at least 1 of the " +
                      std::to_string(c.num_kv_heads) + " key and value heads, got [" +
                      std::to_string(first) + ", " + std::to_string(first) + " + " +
                      std::to_string(count) + ")");
  }
  const Index group = c.num_heads / c.num_kv_heads;
  LayerWeights<T> part = whole;
  part.config.num_heads = count * group;
  part.config.num_kv_heads = count;
  const auto rows = [&](const LinearWeights<T>& weights, Index rows_a_head) {
    return rows_of_weights(weights, first * rows_a_head, count * rows_a_head);
  };
  part.query = rows(whole.query, group * c.head_dim);
  part.key = rows(whole.key, c.head_dim);
  part.value = rows(whole.value, c.value_dim);
  const Tensor4<const T>& output = whole.output.weight;
  const Index columns = group * c.value_dim;
  part.output.weight =
      Tensor4<const T>(output.data() + first * columns * output.stride().dim,
                       Shape4{1, 1, output.length(), count * columns}, output.stride());
  if (first > 0) part.output.bias = nullptr;
  return part;
}

/// Refuses a rotary embedding of heads of another size.
inline void require_rotary(const CallShapes& call, const RotaryEmbedding& rotary, Index head_dim) {
  if (rotary.head_dim() == head_dim) return;
  call.raise_shape("the rotary embedding must have the head_dim of the layer, " +
                   std::to_string(head_dim) + ", not " + std::to_string(rotary.head_dim()));
}

/// Checks a transform of heads of head_dim elements.
template <class T>
void check_transform(const FunctionName& function, const HeadTransform<T>& transform,
                     Index head_dim) {
  CallShapes call(function);
  const auto check_norm = [&](const char* name, const std::optional<RmsNormWeights<T>>& norm) {
    if (!norm) return;
    add_coefficients(call, name, norm->gamma, head_dim);
    require_count(call, name, norm->gamma, "an element of a head", head_dim);
    if (!is_valid_epsilon(norm->epsilon)) {
      call.raise_option(std::string("the epsilon of ") + name +
                        " must be finite and 0 or more, got " + general(norm->epsilon));
    }
  };
  check_norm("the query norm", transform.query_norm);
  check_norm("the key norm", transform.key_norm);
  if (transform.rotary != nullptr) require_rotary(call, *transform.rotary, head_dim);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// tests/support/layers.hpp - layers over weights of their own, and layers by the book.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attn/layers/layer_norm.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/reference.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

inline AttentionConfig config_of(Index model_dim, Index num_heads, Index num_kv_heads = 0) {
  AttentionConfig config;
  config.model_dim = model_dim;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  return config;
}

/// Every size differs, and none follows from the others.
inline AttentionConfig distinct_config() {
  AttentionConfig config = config_of(10, 6, 3);
  config.head_dim = 5;
  config.value_dim = 4;
  config.key_input_dim = 7;
  config.value_input_dim = 9;
  return config;
}

/// The memory of a layer's weights, drawn from a seed, in any layout. The config has its defaults
/// filled in.
template <class T>
struct LayerMemory {
  AttentionConfig config;
  TestTensor<T> query, key, value, output;
  TestTensor<T> query_bias, key_bias, value_bias, output_bias;

  explicit LayerMemory(const AttentionConfig& given, std::uint64_t seed = 1,
                       Layout layout = Layout::contiguous)
      : config(attn::detail::resolve_config("LayerMemory", given)),
        query({1, 1, config.num_heads * config.head_dim, config.model_dim}, layout),
        key({1, 1, config.num_kv_heads * config.head_dim, config.key_input_dim}, layout),
        value({1, 1, config.num_kv_heads * config.value_dim, config.value_input_dim}, layout),
        output({1, 1, config.model_dim, config.num_heads * config.value_dim}, layout),
        query_bias({1, 1, 1, query.shape().length}),
        key_bias({1, 1, 1, key.shape().length}),
        value_bias({1, 1, 1, value.shape().length}),
        output_bias({1, 1, 1, output.shape().length}) {
    TestTensor<T>* const all[] = {&query,      &key,      &value,      &output,
                                  &query_bias, &key_bias, &value_bias, &output_bias};
    for (TestTensor<T>* tensor : all) {
      // Scores of about 1: weights that differ, but none is lost.
      tensor->fill_uniform(seed++, 2 / std::sqrt(static_cast<double>(config.model_dim)));
    }
  }

  LinearWeights<T> query_weights() const { return weights(query, query_bias); }
  LinearWeights<T> key_weights() const { return weights(key, key_bias); }
  LinearWeights<T> value_weights() const { return weights(value, value_bias); }
  LinearWeights<T> output_weights() const { return weights(output, output_bias); }

  template <class Layer = GroupedQueryAttention<T>>
  Layer layer() const {
    return Layer(config, query_weights(), key_weights(), value_weights(), output_weights());
  }

 private:
  LinearWeights<T> weights(const TestTensor<T>& weight, const TestTensor<T>& bias) const {
    return {weight.view(), config.bias ? bias.view().data() : nullptr};
  }
};

/// What a layer reads.
template <class T>
struct LayerTensors {
  TestTensor<T> query, key, value;

  LayerTensors(const AttentionConfig& config, Index batch, Index query_length, Index key_length,
               std::uint64_t seed = 50, Layout layout = Layout::contiguous, Index key_batch = 0)
      : query({batch, 1, query_length, config.model_dim}, layout),
        key({key_batch == 0 ? batch : key_batch, 1, key_length, config.key_input_dim}, layout),
        value({key_batch == 0 ? batch : key_batch, 1, key_length, config.value_input_dim}, layout) {
    query.fill_uniform(seed, 2);
    key.fill_uniform(seed + 1, 2);
    value.fill_uniform(seed + 2, 2);
  }
};

/// Outputs for a layer of this config and these inputs.
template <class T>
Results<T> results_of(const AttentionConfig& config, const LayerTensors<T>& in,
                      Layout layout = Layout::contiguous) {
  const Shape4& q = in.query.shape();
  return Results<T>(q, {q.batch, config.num_heads, q.length, in.key.shape().length}, layout);
}

template <class T, class M = NoMask>
Results<T> forward(const GroupedQueryAttention<T>& layer, const LayerTensors<T>& in,
                   const M& mask = M(), const AttentionOptions& options = {},
                   Layout layout = Layout::contiguous) {
  Results<T> results = results_of(layer.config(), in, layout);
  layer.forward(in.query.view(), in.key.view(), in.value.view(), results.out.view(), mask, options,
                results.extra());
  return results;
}

/// How the book rounds the result of a stage: to T, or not at all.
template <class T>
struct RoundStage {
  template <class S>
  S operator()(S value) const {
    return static_cast<S>(widen(attn::detail::reference_round<T>(value)));
  }
};
struct KeepStage {
  template <class S>
  S operator()(S value) const {
    return value;
  }
};

/// The book's layer: plain loops in the type S. `Stage` is applied to the result of each stage.
template <class S, class Stage>
class BookLayer {
 public:
  template <class X, class T>
  static Tensor4Buffer<S> project(const Tensor4<X>& x, const LinearWeights<T>& weights) {
    Tensor4Buffer<S> y({x.batch(), 1, x.length(), weights.weight.length()});
    for_each_index(y.shape(), [&](Index b, Index h, Index i, Index o) {
      S sum = 0;
      for (Index d = 0; d < x.dim(); ++d) {
        sum += static_cast<S>(widen(std::remove_const_t<X>(x(b, 0, i, d)))) *
               static_cast<S>(widen(weights.weight(0, 0, o, d)));
      }
      if (weights.bias != nullptr) sum += static_cast<S>(widen(weights.bias[o]));
      y(b, h, i, o) = Stage()(sum);
    });
    return y;
  }

  Tensor4Buffer<S> heads;  ///< [B, 1, Sq, num_heads * value_dim]
  Tensor4Buffer<S> weights, log_sum_exp, out;

  template <class T>
  BookLayer(const GroupedQueryAttention<T>& layer, const LayerTensors<T>& in,
            const Formula& formula = {}, const AttentionOptions& options = {}) {
    const AttentionConfig& config = layer.config();
    const Tensor4Buffer<S> q = project(in.query.view(), layer.query_weights());
    const Tensor4Buffer<S> k = project(in.key.view(), layer.key_weights());
    const Tensor4Buffer<S> v = project(in.value.view(), layer.value_weights());
    const Shape4 rows{q.shape().batch, config.num_heads, q.shape().length, 1};
    heads = Tensor4Buffer<S>({rows.batch, 1, rows.length, rows.heads * config.value_dim});
    weights = Tensor4Buffer<S>({rows.batch, rows.heads, rows.length, k.shape().length});
    log_sum_exp = Tensor4Buffer<S>(rows);
    reference_attention(
        split(q, config.num_heads), split(k, config.num_kv_heads), split(v, config.num_kv_heads),
        split(heads, config.num_heads),
        [&](Index b, Index h, Index i, Index j) { return formula.allows(b, h, i, j); },
        [&](S score, Index b, Index h, Index i, Index j) {
          return formula.change(score, b, h, i, j);
        },
        options, AttentionOutputs<S>{weights.view(), log_sum_exp.view()});
    apply_stage(heads);
    out = project(heads.view(), layer.output_weights());
  }

  static void apply_stage(Tensor4Buffer<S>& tensor) {
    for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = Stage()(tensor.data()[i]);
  }

 private:
  static Tensor4<S> split(const Tensor4Buffer<S>& rows, Index heads) {
    const Shape4& s = rows.shape();
    return bshd(const_cast<S*>(rows.data()), {s.batch, heads, s.length, s.dim / heads});
  }
};

/// Holds the outputs of a layer to the book. The bar is twice the error of the book in the layer's
/// own types (each stage rounded), and one rounding of the largest entry.
template <class T>
struct BookAnswers {
  using A = AccumulationType<T>;
  using Wide = std::conditional_t<std::is_same_v<A, float>, double, long double>;

  BookLayer<Wide, KeepStage> exact;
  BookLayer<A, RoundStage<T>> plain;

  BookAnswers(const GroupedQueryAttention<T>& layer, const LayerTensors<T>& in,
              const Formula& formula = {}, const AttentionOptions& options = {})
      : exact(layer, in, formula, options), plain(layer, in, formula, options) {}

  template <class E>
  static void hold(const char* what, const TestTensor<E>& actual, const Tensor4Buffer<Wide>& exact,
                   const Tensor4Buffer<A>& plain) {
    expect_within(what, actual.view(), exact.view(),
                  2 * largest_difference(plain.view(), exact.view()) +
                      epsilon<T>() * largest_magnitude(exact.view()));
    EXPECT_TRUE(actual.gaps_are_untouched());
  }
};

}  // namespace test
}  // namespace attn

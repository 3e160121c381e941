// attn/detail/layers/layer_calls.hpp - level 15: what a layer's functions do, stage by stage, and
// the checks of their argument types.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/caches/token_checks.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/layers/layer_arguments.hpp"
#include "attn/detail/layers/layer_pass.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/layers/real_rows.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// A whole forward pass of a layer of class `name`.
template <class T>
void run_layer(const char* name, const LayerWeights<T>& layer, const LayerInputs<T>& inputs,
               const Tensor4<T>& out, const ErasedMask<AccumulationType<T>>& mask,
               const AttentionOptions& options, const AttentionOutputs<AccumulationType<T>>& extra,
               const CallRotary& rotary) {
  LayerPass<T> pass({name, "forward"}, layer, inputs);
  pass.set_outputs({out, extra, options.workspace});
  pass.prepare(mask, options);
  pass.set_rotary(rotary);
  pass.allocate({name, "workspace_bytes"});
  pass.project_inputs();
  pass.transform_heads(0);
  pass.attend();
  pass.project_output();
}

template <class T>
std::size_t layer_workspace_bytes(const char* name, const LayerWeights<T>& layer,
                                  const LayerInputs<T>& inputs,
                                  const ErasedMask<AccumulationType<T>>& mask,
                                  const AttentionOptions& options) {
  LayerPass<T> pass({name, "workspace_bytes"}, layer, inputs);
  pass.prepare(mask, options);
  return pass.bytes() + Arena::kAlignment;
}

/// A pass over a cache. What there is of keys is appended to it, and the queries, if any, attend to
/// all it holds then. Everything is checked before anything is appended.
template <class T, class Cache, class M>
void run_cached(const char* name, const char* function, const LayerWeights<T>& layer,
                const LayerInputs<T>& inputs, Cache& cache, const Tensor4<T>& out, const M& mask,
                const AttentionOptions& options, const CallRotary& rotary) {
  const auto& whole_mask = cache.mask_with(mask);
  LayerPass<T> pass({name, function}, layer, inputs);
  pass.set_outputs({out, {}, options.workspace});
  const Index appended = inputs.key.length();
  pass.prepare_cached(cache, after_append(cache.source(), appended), appended, whole_mask, options);
  pass.set_rotary(rotary);
  pass.allocate({name, "step_workspace_bytes"});
  pass.project_inputs();
  pass.transform_heads(cache.lengths());
  if constexpr (!std::is_const_v<Cache>) {
    cache.append(pass.keys(), pass.values());
    pass.read_from(cache.source(), whole_mask);
  }
  pass.attend();
  pass.project_output();
}

/// A step of which the last counts[b] tokens of sequence b alone are real.
template <class T, class Cache, class M>
void run_padded_step(const char* name, const LayerWeights<T>& layer, const LayerInputs<T>& inputs,
                     Cache& cache, const Tensor4<T>& out, const PerBatch& counts, const M& mask,
                     const AttentionOptions& options, const CallRotary& rotary) {
  const Index length = inputs.query.length();
  const auto mask_of_real = mask & RealRowsMask(counts, length);
  const auto& whole_mask = cache.mask_with(mask_of_real);
  LayerPass<T> pass({name, "step"}, layer, inputs);
  pass.set_outputs({out, {}, options.workspace});
  check_counts(pass.shapes(), counts, cache.batch(), length, "x");
  pass.shapes().expect(inputs.query.batch() == cache.batch(),
                       "x must have one batch a sequence of the cache");
  pass.prepare_cached(cache, cache.source_after(counts), counts, whole_mask, options);
  pass.set_rotary(rotary);
  pass.allocate({name, "step_workspace_bytes"});
  pass.project_inputs();
  pass.transform_real_heads(cache.lengths(), counts);
  cache.append(pass.keys(), pass.values(), counts);
  pass.read_from(cache.source(), whole_mask);
  pass.attend();
  pass.project_output();
}

template <class T, class Cache, class M>
std::size_t step_workspace_bytes(const char* name, const LayerWeights<T>& layer,
                                 const LayerInputs<T>& inputs, const Cache& cache, const M& mask,
                                 const AttentionOptions& options) {
  LayerPass<T> pass({name, "step_workspace_bytes"}, layer, inputs);
  const Index appended = inputs.key.length();
  pass.prepare_cached(cache, after_append(cache.source(), appended), appended,
                      cache.mask_with(mask), options);
  return pass.bytes() + Arena::kAlignment;
}

/// What a layer of T reads: a tensor of the front door, of the layer's element type.
template <class T, class X>
Tensor4<const T> layer_input(const X& x) {
  require_tensor<X>();
  constexpr bool fits = std::is_same_v<ElementOf<X>, T>;
  static_assert(!is_tensor_v<X> || fits,
                "attn: the inputs of a layer must have the element type of its weights");
  if constexpr (is_tensor_v<X> && fits) {
    return ArgumentOf<X>::view(x);
  } else {
    return {};
  }
}
template <class T, class Q, class K, class V>
LayerInputs<T> layer_inputs(const Q& query, const K& key, const V& value) {
  return {layer_input<T>(query), layer_input<T>(key), layer_input<T>(value), false};
}
template <class T, class X>
LayerInputs<T> layer_inputs(const X& x) {
  const Tensor4<const T> view_of_x = layer_input<T>(x);
  return {view_of_x, view_of_x, view_of_x, true};
}

/// What a pass that only reads a cache projects, and one that only appends to it.
template <class T>
LayerInputs<T> queries_alone(const AttentionConfig& config, const Tensor4<const T>& x) {
  const Tensor4<const T> key(nullptr, Shape4{x.batch(), 1, 0, config.key_input_dim});
  const Tensor4<const T> value(nullptr, Shape4{x.batch(), 1, 0, config.value_input_dim});
  return {x, key, value, true};
}
template <class T>
LayerInputs<T> keys_alone(const AttentionConfig& config, const Tensor4<const T>& key,
                          const Tensor4<const T>& value) {
  const Tensor4<const T> query(nullptr, Shape4{key.batch(), 1, 0, config.model_dim});
  return {query, key, value, false};
}

/// What it writes: layer_output<T, O>(out) for a parameter O&& out.
template <class T, class O>
Tensor4<T> layer_output(std::remove_reference_t<O>& out) {
  const auto view_of_out = output_view<O>(out);
  constexpr bool fits = std::is_same_v<typename decltype(output_view<O>(out))::Element, T>;
  static_assert(!is_tensor_v<O> || fits,
                "attn: out of a layer must have the element type of its weights");
  if constexpr (fits) {
    return view_of_out;
  } else {
    return {};
  }
}

template <class T, class Cache>
constexpr void require_cache() {
  static_assert(is_cache_v<Cache>, "attn: the cache of a layer must be one of attn/kv_cache.hpp");
  static_assert(std::is_same_v<AccumulationType<T, typename Cache::Element>, AccumulationType<T>>,
                "attn: a cache of double needs a layer of double");
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/layers/layer_calls.hpp - level 15: what a layer's functions do, stage by stage, and
// the checks of their argument types.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/layers/layer_arguments.hpp"
#include "attn/detail/layers/layer_pass.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

inline namespace ATTN_ERRORS {

/// A whole forward pass of a layer of class `name`.
template <class T, class M>
void run_layer(const char* name, const LayerWeights<T>& layer, const LayerInputs<T>& inputs,
               const Tensor4<T>& out, const M& mask, const AttentionOptions& options,
               const AttentionOutputs<AccumulationType<T>>& extra, const RotaryEmbedding* rotary) {
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

template <class T, class M>
std::size_t layer_workspace_bytes(const char* name, const LayerWeights<T>& layer,
                                  const LayerInputs<T>& inputs, const M& mask,
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
                const AttentionOptions& options, const RotaryEmbedding* rotary) {
  const auto& whole_mask = cache.mask_with(mask);
  LayerPass<T> pass({name, function}, layer, inputs);
  pass.set_outputs({out, {}, options.workspace});
  pass.prepare_cached(cache, whole_mask, options);
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

template <class T, class Cache, class M>
std::size_t step_workspace_bytes(const char* name, const LayerWeights<T>& layer,
                                 const LayerInputs<T>& inputs, const Cache& cache, const M& mask,
                                 const AttentionOptions& options) {
  LayerPass<T> pass({name, "step_workspace_bytes"}, layer, inputs);
  pass.prepare_cached(cache, cache.mask_with(mask), options);
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

template <class T, class Cache>
constexpr void require_cache() {
  static_assert(is_cache_v<Cache>, "attn: the cache of a layer must be one of attn/kv_cache.hpp");
  static_assert(std::is_same_v<AccumulationType<T, typename Cache::Element>, AccumulationType<T>>,
                "attn: a cache of double needs a layer of double");
}

}  // namespace detail
}  // namespace attn

// attn/detail/call/arguments.hpp - level 5: what the arguments of public functions may be.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/rows/tensor_ref.hpp"

namespace attn {
namespace detail {

/// Specialised by caches, which stand in the place of k and v.
template <class T>
inline constexpr bool is_cache_v = false;

template <class Q, class K, class V>
constexpr void require_inputs() {
  static_assert(is_tensor_v<Q> && is_tensor_v<K> && is_tensor_v<V>,
                "attn: q, k and v must be attn::Tensor4 views (or Tensor4Buffer); make one with "
                "attn::bhsd, attn::bshd or attn::view");
  require_element<ElementOf<Q>>();
  require_element<ElementOf<K>>();
  require_element<ElementOf<V>>();
}

}  // namespace detail
}  // namespace attn

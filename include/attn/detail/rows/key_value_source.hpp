// attn/detail/rows/key_value_source.hpp - level 4: the keys and values of a call, whole tensors or
// those that a cache holds.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

struct MatrixProducts;  // loop/engine.hpp

/// Keys and values as the driver reads them.
struct KeyValueSource {
  TensorRef keys, values;
  KeyMap map;
  Shape4 key_shape, value_shape;  ///< as the call sees them: [B|1, Hk|Hv, Sk, Dk|Dv]
  Index length = 0;               ///< Sk
  PerBatch begin = 0, end = 0;    ///< the keys that are stored: begin .. end - 1
  Index first_keys = 0;           ///< and 0 .. first_keys - 1, as far as there are so many
  /// The most keys that a sequence can ever have stored at a time: what sizes a workspace.
  Index capacity = 0;
  /// Set where both are bfloat16: how a matrix unit multiplies them.
  const MatrixProducts* matrix_products = nullptr;

  ATTN_ALWAYS_INLINE KeyValueSource() = default;
  /// Whole tensors.
  ATTN_ALWAYS_INLINE KeyValueSource(const TensorRef& k, const TensorRef& v)
      : keys(k),
        values(v),
        key_shape(k.shape),
        value_shape(v.shape),
        length(k.shape.length),
        end(k.shape.length),
        capacity(k.shape.length) {}

  /// The same storage with `stored` keys in every sequence, the last of which is key count - 1.
  ATTN_ALWAYS_INLINE KeyValueSource with_length(Index count, Index stored) const {
    KeyValueSource result = *this;
    result.length = result.key_shape.length = result.value_shape.length = count;
    result.begin = count - (stored - first_keys);
    result.end = count;
    return result;
  }
};

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

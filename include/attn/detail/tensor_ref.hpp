// attn/detail/tensor_ref.hpp - level 3: a view whose element type is a value, not a template
// parameter. The driver and the checks are compiled once for all element types; conversion happens
// where rows enter and leave the tiles.
#pragma once

#include <type_traits>

#include "attn/config.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

enum class ElementType : unsigned char { float64, float32, float16, bfloat16, boolean };

template <class T>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<T, double>) return ElementType::float64;
  if constexpr (std::is_same_v<T, float>) return ElementType::float32;
  if constexpr (std::is_same_v<T, Eigen::half>) return ElementType::float16;
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) return ElementType::bfloat16;
  return ElementType::boolean;
}

struct TensorRef {
  const void* data = nullptr;
  ElementType type = ElementType::float32;
  Index element_size = 0;
  Shape4 shape;
  Stride4 stride;

  TensorRef() = default;
  template <class T>
  explicit TensorRef(const Tensor4<T>& view)
      : data(view.data()),
        type(element_type<std::remove_const_t<T>>()),
        element_size(static_cast<Index>(sizeof(T))),
        shape(view.shape()),
        stride(view.stride()) {}

  Index offset(Index b, Index h, Index i, Index d) const {
    return b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
  }
  const void* at(Index element_offset) const {
    return static_cast<const char*>(data) + element_offset * element_size;
  }
};

/// The types that a view of attention may hold.
template <class T>
constexpr void require_element() {
  static_assert(is_element_v<std::remove_const_t<T>>,
                "attn: the element type of q, k, v and out must be double, float, Eigen::half or "
                "Eigen::bfloat16");
}

/// Calls f with a null pointer of the element type: f(static_cast<const T*>(nullptr)).
template <class F>
decltype(auto) visit_element(ElementType type, const F& f) {
  switch (type) {
    case ElementType::float64:
      return f(static_cast<const double*>(nullptr));
    case ElementType::float16:
      return f(static_cast<const Eigen::half*>(nullptr));
    case ElementType::bfloat16:
      return f(static_cast<const Eigen::bfloat16*>(nullptr));
    case ElementType::float32:
    case ElementType::boolean:
      break;
  }
  return f(static_cast<const float*>(nullptr));
}

}  // namespace detail
}  // namespace attn

// attn/detail/rows/tensor_ref.hpp - level 4: a view whose element type is a value, not a template
// parameter. The driver and the checks are compiled once for all element types; conversion happens
// where rows enter and leave the tiles.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
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
  /// What reads its rows as they are stored, if these are of 16 bits.
  const FewRowKernels<float>& (*few_row_kernels)(InstructionSet set) = nullptr;

  TensorRef() = default;
  template <class T>
  explicit TensorRef(const Tensor4<T>& view)
      : data(view.data()),
        type(element_type<std::remove_const_t<T>>()),
        element_size(static_cast<Index>(sizeof(T))),
        shape(view.shape()),
        stride(view.stride()) {
    using Element = std::remove_const_t<T>;
    if constexpr (std::is_same_v<Element, Eigen::half>) {
      few_row_kernels = &detail::few_row_kernels<HalfBits>;
    } else if constexpr (std::is_same_v<Element, Eigen::bfloat16>) {
      few_row_kernels = &detail::few_row_kernels<Bfloat16Bits>;
    }
  }

  Index offset(Index b, Index h, Index i, Index d) const {
    return b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
  }
  const void* at(Index element_offset) const {
    return static_cast<const char*>(data) + element_offset * element_size;
  }
};

/// What an argument holds: the element type of a Tensor4 or Tensor4Buffer.
template <class Argument>
struct TensorArgument {
  static constexpr bool kIsTensor = false;
  using Element = float;  // lets the static_assert about the argument speak first
};
template <class T>
struct TensorArgument<Tensor4<T>> {
  static constexpr bool kIsTensor = true;
  using Element = T;
  static Tensor4<T> view(const Tensor4<T>& argument) { return argument; }
};
template <class T>
struct TensorArgument<Tensor4Buffer<T>> {
  static constexpr bool kIsTensor = true;
  using Element = T;
  static Tensor4<T> view(Tensor4Buffer<T>& argument) { return argument.view(); }
  static Tensor4<const T> view(const Tensor4Buffer<T>& argument) { return argument.view(); }
};
template <class Argument>
using ArgumentOf = TensorArgument<std::remove_cv_t<std::remove_reference_t<Argument>>>;
template <class Argument>
using ElementOf = std::remove_const_t<typename ArgumentOf<Argument>::Element>;
template <class Argument>
inline constexpr bool is_tensor_v = ArgumentOf<Argument>::kIsTensor;

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

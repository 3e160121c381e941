// attn/detail/rows/tensor_ref.hpp - level 4: a view whose element type is a value, not a template
// parameter. The driver and the checks are compiled once for all element types; conversion happens
// where rows enter and leave the tiles.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/rows/half_formats.hpp"
#include "attn/detail/rows/number_formats.hpp"
#include "attn/detail/rows/row_format.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// A view of any element type. The strides of axes that do not step are 0, whatever the view said.
struct TensorRef {
  const void* data = nullptr;
  const RowFormat* format = &RowFormatOf<float>::kFormat;
  Shape4 shape;
  Stride4 stride;

  ATTN_ALWAYS_INLINE TensorRef() = default;
  template <class T>
  ATTN_ALWAYS_INLINE explicit TensorRef(const Tensor4<T>& view)
      : data(view.data()),
        format(&RowFormatOf<std::remove_const_t<T>>::kFormat),
        shape(view.shape()),
        stride{shape.batch > 1 ? view.stride().batch : 0, shape.heads > 1 ? view.stride().heads : 0,
               shape.length > 1 ? view.stride().length : 0, shape.dim > 1 ? view.stride().dim : 0} {
  }

  ATTN_ALWAYS_INLINE Index element_size() const { return format->element_size; }
  ATTN_ALWAYS_INLINE Index offset(Index b, Index h, Index i, Index d) const {
    return b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
  }
  ATTN_ALWAYS_INLINE const void* at(Index element_offset) const {
    return static_cast<const char*>(data) + element_offset * element_size();
  }
  /// Of an output.
  ATTN_ALWAYS_INLINE void* written() const { return const_cast<void*>(data); }

  ATTN_ALWAYS_INLINE bool has_contiguous_rows() const { return stride.dim == 1 || shape.dim == 1; }
  /// Whether rows can be read or written in place, as contiguous elements of A.
  template <class A>
  ATTN_ALWAYS_INLINE bool has_plain_rows() const {
    return format->type == kPlainType<A> && has_contiguous_rows();
  }
};

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

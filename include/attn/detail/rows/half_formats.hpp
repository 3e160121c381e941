// attn/detail/rows/half_formats.hpp - level 4: elements of 16 bits, Eigen::half and
// Eigen::bfloat16.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <Eigen/Core>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/number_formats.hpp"
#include "attn/detail/rows/row_format.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class T, class A>
void load_halves(const void* data, Index offset, Index stride, Index count, A* out,
                 const WidenTable& widen) {
  const T* const first = static_cast<const T*>(data) + offset;
  if constexpr (std::is_same_v<A, float>) {
    if (stride == 1) {
      if constexpr (std::is_same_v<T, Eigen::half>) {
        widen.half(reinterpret_cast<const HalfBits*>(first), out, count);
      } else {
        widen.bfloat16(reinterpret_cast<const Bfloat16Bits*>(first), out, count);
      }
      return;
    }
  }
  for (Index i = 0; i < count; ++i) {
    out[i] = static_cast<A>(static_cast<float>(first[i * stride]));
  }
}

template <class T, class Bits>
inline constexpr RowFormat kHalfFormat = {
    std::is_same_v<T, Eigen::half> ? NumberType::float16 : NumberType::bfloat16,
    static_cast<Index>(sizeof(T)),
    load_halves<T, float>,
    load_halves<T, double>,
    store_numbers<T, float>,
    store_numbers<T, double>,
    few_row_kernels<Bits>};

template <>
struct RowFormatOf<Eigen::half> {
  static constexpr const RowFormat& kFormat = kHalfFormat<Eigen::half, HalfBits>;
};
template <>
struct RowFormatOf<Eigen::bfloat16> {
  static constexpr const RowFormat& kFormat = kHalfFormat<Eigen::bfloat16, Bfloat16Bits>;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

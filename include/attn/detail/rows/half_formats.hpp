// attn/detail/rows/half_formats.hpp - level 4: elements of 16 bits, Eigen::half and
// Eigen::bfloat16.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/number_formats.hpp"
#include "attn/detail/rows/row_format.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class T, class A>
void load_halves(const void* data, Index offset, Index stride, Index count, A* out,
                 InstructionSet set) {
  const T* const first = static_cast<const T*>(data) + offset;
  if constexpr (std::is_same_v<A, float>) {
    if (stride == 1) {
      if constexpr (std::is_same_v<T, Eigen::half>) {
        widening(set).half(reinterpret_cast<const HalfBits*>(first), out, count);
      } else {
        widening(set).bfloat16(reinterpret_cast<const Bfloat16Bits*>(first), out, count);
      }
      return;
    }
  }
  for (Index i = 0; i < count; ++i) {
    out[i] = static_cast<A>(static_cast<float>(first[i * stride]));
  }
}

/// A few rows at a time, in pairs of dims.
template <class T>
void store_bfloat16_columns(void* data, Index offset, Index row_stride, Index count, Index dim,
                            const float* in, Index in_stride, const KernelTable<float>& kernels) {
  constexpr Index kRows = 16, kPairs = 32;
  const WidenTable& widen = widening(kernels.set);
  float pairs[kPairs * kRows], rows[kRows * kPairs];
  T* const first = static_cast<T*>(data) + offset;
  for (Index row = 0; row < count; row += kRows) {
    const Index block = (std::min)(kRows, count - row);
    for (Index d = 0; d < dim; d += 2 * kPairs) {
      const Index dims = (std::min)(2 * kPairs, dim - d);
      widen.pair_bfloat16(in + d * in_stride + row, dims, block, in_stride, pairs, kRows);
      kernels.transpose(pairs, kRows, ceil_div(dims, 2), block, rows, kPairs);
      for (Index i = 0; i < block; ++i) {
        std::memcpy(static_cast<void*>(first + (row + i) * row_stride + d), rows + i * kPairs,
                    static_cast<std::size_t>(dims) * sizeof(T));
      }
    }
  }
}

// Templates, so that a program without such tensors does not compile the kernels that they name.
template <class T>
struct RowFormatOf<T, std::enable_if_t<std::is_same_v<T, Eigen::half>>> {
  static constexpr RowFormat kFormat = {NumberType::float16,      static_cast<Index>(sizeof(T)),
                                        load_halves<T, float>,    load_halves<T, double>,
                                        store_numbers<T, float>,  store_numbers<T, double>,
                                        few_row_kernels<HalfBits>};
};
template <class T>
struct RowFormatOf<T, std::enable_if_t<std::is_same_v<T, Eigen::bfloat16>>> {
  static constexpr RowFormat kFormat = {
      NumberType::bfloat16,          static_cast<Index>(sizeof(T)), load_halves<T, float>,
      load_halves<T, double>,        store_numbers<T, float>,       store_numbers<T, double>,
      few_row_kernels<Bfloat16Bits>, store_bfloat16_columns<T>};
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/rows/number_formats.hpp - level 4: elements that are numbers of the language: float
// and double, and the flags and integers of masks and positions.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/row_format.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class T, class A>
void load_numbers(const void* data, Index offset, Index stride, Index count, A* out,
                  InstructionSet) {
  const T* const first = static_cast<const T*>(data) + offset;
  for (Index i = 0; i < count; ++i) out[i] = static_cast<A>(first[i * stride]);
}
template <class T, class A>
void store_numbers(void* data, Index offset, Index stride, Index count, const A* in,
                   Index in_stride) {
  T* const first = static_cast<T*>(data) + offset;
  for (Index i = 0; i < count; ++i) first[i * stride] = round_to<T>(in[i * in_stride]);
}

template <class T>
constexpr NumberType number_type() {
  if constexpr (std::is_same_v<T, double>) return NumberType::float64;
  if constexpr (std::is_same_v<T, float>) return NumberType::float32;
  return sizeof(T) == 1 ? NumberType::boolean : NumberType::other;
}

/// The format of elements of type T. A flag is any byte: what is not 0 is true, whatever the type
/// says.
template <class T, class = void>
struct RowFormatOf {
  static_assert(std::is_arithmetic_v<T>,
                "attn: tensors hold double, float, Eigen::half or Eigen::bfloat16; masks hold bool "
                "or std::uint8_t, positions integers");
  using Stored = std::conditional_t<std::is_same_v<T, bool>, unsigned char, T>;
  static constexpr RowFormat kFormat = {number_type<Stored>(),
                                        static_cast<Index>(sizeof(T)),
                                        load_numbers<Stored, float>,
                                        load_numbers<Stored, double>,
                                        nullptr,
                                        nullptr};
};
template <>
struct RowFormatOf<float> {
  static constexpr RowFormat kFormat = {
      NumberType::float32,         static_cast<Index>(sizeof(float)), load_numbers<float, float>,
      load_numbers<float, double>, store_numbers<float, float>,       store_numbers<float, double>};
};
template <>
struct RowFormatOf<double> {
  static constexpr RowFormat kFormat = {
      NumberType::float64,          static_cast<Index>(sizeof(double)),
      load_numbers<double, float>,  load_numbers<double, double>,
      store_numbers<double, float>, store_numbers<double, double>};
};

/// The number type of an accumulation type.
template <class A>
inline constexpr NumberType kPlainType =
    std::is_same_v<A, double> ? NumberType::float64 : NumberType::float32;

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

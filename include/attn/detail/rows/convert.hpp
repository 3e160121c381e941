// attn/detail/rows/convert.hpp - level 4: numbers of one element type as those of another.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// `value` as a T, rounded once (to nearest, ties to even).
template <class T, class A>
T round_to(A value) {
  if constexpr (std::is_same_v<T, A> || std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<A, float>) {
    return T(value);
  } else {
    // double to 16 bits through float would round twice. Rounding the first step to odd keeps the
    // information that the value was not exact, so the second step rounds as if it were the only
    // one. Source: S. Boldo, G. Melquiond, "When double rounding is odd" (2005).
    float nearest = static_cast<float>(value);
    if (is_finite(nearest) && static_cast<double>(nearest) != value) {
      std::uint32_t bits = bits_of(nearest);
      const bool too_large = static_cast<double>(nearest) > value;
      const bool negative = value < 0;
      if (too_large != negative) --bits;  // towards zero
      nearest = from_bits<float>(bits | 1u);
    }
    return T(nearest);
  }
}

/// Any element as a T, rounded once.
template <class T, class From>
T convert_element(From value) {
  if constexpr (std::is_same_v<T, From>) {
    return value;
  } else if constexpr (sizeof(From) == 2) {
    return round_to<T>(static_cast<float>(value));
  } else {
    return round_to<T>(value);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

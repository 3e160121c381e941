// attn/detail/base/float_bits.hpp - level 1: special values, recognised by their bits.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attn/config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

// Special values are recognised by their bits: under -ffast-math a compiler may take comparisons
// with infinity and NaN for constants.
template <class A>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Int = std::uint32_t;
  static constexpr Int kExponent = 0x7F800000u, kMagnitude = 0x7FFFFFFFu;
  static constexpr Int kNegativeInfinity = 0xFF800000u;
};
template <>
struct FloatBits<double> {
  using Int = std::uint64_t;
  static constexpr Int kExponent = 0x7FF0000000000000u, kMagnitude = 0x7FFFFFFFFFFFFFFFu;
  static constexpr Int kNegativeInfinity = 0xFFF0000000000000u;
};

// By reference: under -ffast-math Clang takes it that no argument passed by value is infinite or
// NaN.
template <class A>
typename FloatBits<A>::Int bits_of(const A& value) {
  typename FloatBits<A>::Int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <class A>
A from_bits(typename FloatBits<A>::Int bits) {
  A value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class A>
bool is_finite(const A& value) {
  return (bits_of(value) & FloatBits<A>::kExponent) != FloatBits<A>::kExponent;
}
template <class A>
bool is_nan(const A& value) {
  return (bits_of(value) & FloatBits<A>::kMagnitude) > FloatBits<A>::kExponent;
}
template <class A>
bool is_negative_infinity(const A& value) {
  return bits_of(value) == FloatBits<A>::kNegativeInfinity;
}

// Under -ffast-math Clang also takes it that no function returns an infinity: one that it can see
// is replaced by whatever number might have come instead. So these bits are hidden from it.
template <class A>
typename FloatBits<A>::Int negative_infinity_bits() {
  typename FloatBits<A>::Int bits = FloatBits<A>::kNegativeInfinity;
#if defined(__clang__)
  __asm__("" : "+r"(bits));
#endif
  return bits;
}
/// The score of a key that is absent.
template <class A>
A negative_infinity() {
  return from_bits<A>(negative_infinity_bits<A>());
}

/// A finite value that -ffast-math must take as it is: the compiler knows nothing of what comes
/// from here, and calls no vector function for several of them (those are less exact).
template <class A>
A as_written(A value) {
#if ATTN_IS_FAST_MATH
  __asm__("" : "+m"(value));
#endif
  return value;
}

/// Marks `count` scores as those of absent keys.
template <class A>
void fill_absent(A* scores, Index count) {
  const A absent = negative_infinity<A>();
  constexpr Index kStep = 8;  // a count that compilers turn into vectors at -O2
  for (; count >= kStep; count -= kStep, scores += kStep) {
    for (Index i = 0; i < kStep; ++i) scores[i] = absent;
  }
  for (Index i = 0; i < count; ++i) scores[i] = absent;
}

/// `value` as an A; a finite value wider than A becomes A's largest or lowest finite number.
template <class A>
A clamp_to(double value) {
  if constexpr (!std::is_same_v<A, double>) {
    if (is_finite(value)) {
      const double limit = static_cast<double>((std::numeric_limits<A>::max)());
      if (value > limit) return (std::numeric_limits<A>::max)();
      if (value < -limit) return std::numeric_limits<A>::lowest();
    }
  }
  return static_cast<A>(value);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

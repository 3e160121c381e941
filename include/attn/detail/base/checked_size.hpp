// attn/detail/base/checked_size.hpp - level 1: sizes computed without overflow.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <limits>
#include <type_traits>

#include "attn/config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// A number of elements or bytes. What is negative, or was too large for an Index at any step, does
/// not fit, and nothing computed from it does.
class CheckedSize {
 public:
  constexpr CheckedSize(Index value) : value_(value < 0 ? kTooLarge : value) {}

  constexpr bool fits() const { return value_ != kTooLarge; }
  /// The largest Index if it does not fit.
  constexpr Index value() const { return value_; }

  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    if (!a.fits() || !b.fits()) return kTooLarge;
    const bool both_small = a.value_ <= kRoot && b.value_ <= kRoot;  // spares the division
    return both_small || b.value_ == 0 || a.value_ <= kTooLarge / b.value_ ? a.value_ * b.value_
                                                                           : kTooLarge;
  }
  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    return a.value_ <= kTooLarge - b.value_ ? a.value_ + b.value_ : kTooLarge;
  }

 private:
  static constexpr Index kTooLarge = (std::numeric_limits<Index>::max)();
  static constexpr Index kRoot = Index{1} << (sizeof(Index) * 4 - 1);  // kRoot^2 < kTooLarge

  Index value_;
};

/// a + b, or the end of Index's range that lies nearer.
constexpr Index add_within_range(Index a, Index b) {
  constexpr Index kMost = (std::numeric_limits<Index>::max)();
  constexpr Index kLeast = (std::numeric_limits<Index>::min)();
  if (b > 0) return a > kMost - b ? kMost : a + b;
  return a < kLeast - b ? kLeast : a + b;
}

/// a * b for strides that nothing is read through if they overflow: then some other number.
constexpr Index multiply_unchecked(Index a, Index b) {
  using Unsigned = std::make_unsigned_t<Index>;
  return static_cast<Index>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

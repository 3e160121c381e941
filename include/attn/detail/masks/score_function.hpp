// attn/detail/masks/score_function.hpp - level 6: the slopes of ALiBi, and what a score function
// may be.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cmath>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Slope of one head; see alibi_slopes.
inline double alibi_slope(Index head, Index num_heads) {
  Index power = 1;
  while (power * 2 <= num_heads) power *= 2;
  const double step =
      head < power ? 8.0 / static_cast<double>(power) : 4.0 / static_cast<double>(power);
  const Index place = head < power ? head + 1 : 2 * (head - power) + 1;
  return std::exp2(-step * static_cast<double>(place));
}

/// Whether F takes float scores alone: a function object whose operator() is no template.
template <class F>
struct TakesFloat {
  template <class C, class R, class S, class... Rest>
  static constexpr bool takes_float(R (C::*)(S, Rest...) const) {
    return std::is_same_v<std::decay_t<S>, float>;
  }
  template <class C, class R, class S, class... Rest>
  static constexpr bool takes_float(R (C::*)(S, Rest...) const noexcept) {
    return std::is_same_v<std::decay_t<S>, float>;
  }
};
template <class F, class = void>
inline constexpr bool takes_float_v = false;
template <class F>
inline constexpr bool takes_float_v<F, std::void_t<decltype(&F::operator())>> =
    TakesFloat<F>::takes_float(&F::operator());
template <class R, class... Rest>
inline constexpr bool takes_float_v<R (*)(float, Rest...), void> = true;

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/base/rounding.hpp - level 1: sizes in whole steps.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

constexpr Index round_up(Index value, Index multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr Index ceil_div(Index value, Index divisor) { return (value + divisor - 1) / divisor; }

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

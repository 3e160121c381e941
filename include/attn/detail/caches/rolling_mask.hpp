// attn/detail/caches/rolling_mask.hpp - level 10: what a rolling cache adds to the mask of a call.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/mask.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// sliding_window(window - 1, kUnlimited) | first_keys(count), and where count is 0 the window
/// alone at its own cost.
class RollingMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE RollingMask(Index window, Index first_keys_count)
      : window_(sliding_window(window - 1, kUnlimited)),
        both_(window_ | first_keys(first_keys_count)),
        is_window_(first_keys_count == 0) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return is_window_ ? window_.allows(at) : both_.allows(at);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return is_window_ ? window_.key_range(rows, key_length) : both_.key_range(rows, key_length);
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return is_window_ ? detail::keys_within(window_, rows, keys, key_length)
                      : detail::keys_within(both_, rows, keys, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return is_window_ ? window_.row_range(rows, keys) : both_.row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return is_window_ ? window_.cover(rows, keys) : both_.cover(rows, keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    if (is_window_) {
      window_.apply(tile);
    } else {
      both_.apply(tile);
    }
  }
  ATTN_ALWAYS_INLINE void declare(MaskChecker& checker) const { window_.declare(checker); }

 private:
  SlidingWindowMask window_;
  EitherMask<SlidingWindowMask, FirstKeysMask> both_;
  bool is_window_;
};

}  // namespace detail
}  // namespace attn

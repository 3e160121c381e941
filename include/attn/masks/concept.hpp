// attn/masks/concept.hpp - level 6: what a mask is.
#pragma once

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/tile.hpp"

namespace attn {

/// The base of every mask; what it defines fits a mask that drops nothing and changes nothing.
struct Mask {
  bool allows(const ScorePosition&) const { return true; }
  KeyRange key_range(const RowBlock&, Index key_length) const { return {0, key_length}; }
  Cover cover(const RowBlock&, KeyRange) const { return Cover::all; }

  /// Whether modify() changes scores.
  bool modifies() const { return false; }
  template <class A>
  void modify(const ScoreTile<A>&) const {}

  /// Sets the dropped scores of a partly covered tile to -infinity. `modified_later`: a mask to
  /// the right of this one has changed scores since modify().
  template <class A>
  void apply(const ScoreTile<A>&, bool modified_later) const {
    (void)modified_later;
  }

  /// Validates against the shapes of the call and declares where positions come from.
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker&) const {}
};

template <class M>
inline constexpr bool is_mask_v = std::is_base_of_v<Mask, M>;

}  // namespace attn

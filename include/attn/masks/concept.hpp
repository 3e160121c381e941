// attn/masks/concept.hpp - level 6: what a mask is.
#pragma once

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/tile.hpp"

namespace attn {

/// What a mask tells the checks of a call, in declare(checker), before anything is computed:
///   use_position("my_mask()")          it reads positions: ScorePosition::query_position, or those
///                                      of a RowBlock
///   check_score_view(name, view)       a tensor of it must be [B|1, Hq|1, Sq|1, Sk|1]
///   check_per_batch(name, numbers)     a PerBatch of it must have the batch of q
///   scores()                           (B, Hq, Sq, Sk)
///   raise_option(text), raise_shape(text)   an error that names the function and every shape
using MaskChecker = detail::MaskChecker;

/// The base of every mask; what it defines fits a mask that drops nothing and changes nothing. A
/// mask of your own derives from this and defines what differs; the answers must not contradict
/// each other: where allows() is true, the key lies in key_range, the row in row_range, and cover
/// is not none; where cover is all, allows() is true everywhere. One that drops keys defines at
/// least three of them: allows(), a cover() that is not always `all`, and apply(), which drops. One
/// that reads positions says so in declare(). examples/own_mask.cpp is one that skips tiles.
///
/// A mask that leaves gaps between the keys it keeps may define, beside key_range,
///   KeyRange keys_within(const RowBlock& rows, KeyRange keys, Index key_length) const
/// which of `keys`, those of a tile or more, can matter to these rows: fewer scores are computed.
struct Mask {
  /// Whether this query may see this key.
  ATTN_ALWAYS_INLINE bool allows(const ScorePosition&) const { return true; }
  /// Which keys, of 0 .. key_length - 1, can matter to these rows at all.
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock&, Index key_length) const {
    return {0, key_length};
  }
  /// Which of these rows, counted from the block's first, can see any of `keys`.
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange) const {
    return {0, rows.count};
  }
  /// Whether it drops none, some or all of the keys for these rows.
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock&, KeyRange) const { return Cover::all; }

  /// Whether masks of this type change scores, which those in a union must not.
  static constexpr bool kChangesScores = false;
  /// Whether modify() changes scores.
  ATTN_ALWAYS_INLINE bool modifies() const { return false; }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>&) const {}

  /// Sets the dropped scores of a partly covered tile to -infinity.
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>&) const {}

  /// Validates against the shapes of the call and says what it reads.
  ATTN_ALWAYS_INLINE void declare(MaskChecker&) const {}
};

template <class M>
inline constexpr bool is_mask_v = std::is_base_of_v<Mask, M>;

}  // namespace attn

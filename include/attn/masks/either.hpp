// attn/masks/either.hpp - level 7: unions of masks.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/detail/masks/either_scores.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tile.hpp"

namespace attn {

/// Either mask: a key must pass one of both.
template <class Left, class Right>
class EitherMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE EitherMask(Left left, Right right)
      : left_(std::move(left)), right_(std::move(right)) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return left_.allows(at) || right_.allows(at);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return left_.key_range(rows, key_length) | right_.key_range(rows, key_length);
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return detail::keys_within(left_, rows, keys, key_length) |
           detail::keys_within(right_, rows, keys, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return left_.row_range(rows, keys) | right_.row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return left_.cover(rows, keys) | right_.cover(rows, keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    detail::apply_either(tile, left_, right_);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.declare_side(left_);
    checker.declare_side(right_);
  }

 private:
  Left left_;
  Right right_;
};

/// A key must pass `left` or `right`. Both only keep or drop keys: biases, ALiBi and modify_score
/// stand outside, combined with &; one that hides in an AnyMask is an OptionError of the call. What
/// both drop is skipped. Positions follow the rules of all masks of a call: sides that give
/// different ones are an OptionError. Put parentheses around & beside |: compilers warn without
/// them.
template <class Left, class Right, class = std::enable_if_t<is_mask_v<Left> && is_mask_v<Right>>>
ATTN_ALWAYS_INLINE EitherMask<Left, Right> operator|(Left left, Right right) {
  static_assert(!Left::kChangesScores && !Right::kChangesScores,
                "attn: the sides of a union (|) only keep or drop keys: combine add_bias, alibi "
                "and modify_score with & outside it");
  return EitherMask<Left, Right>(std::move(left), std::move(right));
}

template <class Left, class Right, class = std::enable_if_t<is_mask_v<Left> && is_mask_v<Right>>>
ATTN_ALWAYS_INLINE EitherMask<Left, Right> operator||(Left left, Right right) {
  static_assert(!is_mask_v<Left>, "attn: unions of masks are made with |, not with ||");
  return EitherMask<Left, Right>(std::move(left), std::move(right));
}

}  // namespace attn

// attn/masks/new_keys.hpp - level 7: boolean tensors of the newest keys alone, behind a past that
// all queries see.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/masks/score_tensor.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// A boolean tensor [B|1, Hq|1, Sq|1, N] of the keys first_key(batch) .. first_key(batch) + N - 1.
class NewKeysMask : public Mask {
 public:
  template <class T>
  ATTN_ALWAYS_INLINE NewKeysMask(const Tensor4<T>& view, PerBatch first_key, bool keeps)
      : view_(view), first_key_(first_key), keeps_(keeps) {
    detail::require_flags<T>();
  }

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    const KeyRange held = this->held(at.batch);
    if (at.key < held.begin || at.key >= held.end) return at.key < held.begin;
    const ScorePosition place{at.batch, at.head, at.query, at.key - held.begin, 0};
    return detail::is_kept(view_, detail::place_of(place, view_.stride), keeps_);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return KeyRange{0, key_length} & KeyRange{0, held(rows.batch).end};
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return {0, keys.begin < held(rows.batch).end ? rows.count : 0};
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    const KeyRange held = this->held(rows.batch);
    return keys.end <= held.begin   ? Cover::all
           : keys.begin >= held.end ? Cover::none
                                    : Cover::partial;
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    detail::apply_new_keys(tile, view_, keeps_, held(tile.rows.batch));
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.check_new_keys(keeps_ ? "keep_where mask" : "drop_where mask", view_, first_key_);
  }

 private:
  ATTN_ALWAYS_INLINE KeyRange held(Index batch) const {
    const Index first = first_key_[batch];
    return {first, first + view_.shape.dim};
  }

  detail::TensorRef view_;
  PerBatch first_key_;
  bool keeps_;
};

/// A mask of the new keys alone, as of a tree of drafts behind a cached past: keys before
/// first_key, one number or one each batch, are kept.
///
///   mask        [B|1, Hq|1, Sq|1, N] of bool or std::uint8_t, true keeps: element n is of key
///               first_key(b) + n. Its last axis does not broadcast.
///   first_key   0 .. Sk; over a cache its length before the new tokens were appended
///
/// N = Sk - first_key, of the largest first_key (else a ShapeError). In a batch whose first_key is
/// smaller, keys from first_key(b) + N on are dropped: there they lie behind its tokens.
template <class T>
ATTN_ALWAYS_INLINE NewKeysMask keep_where(Tensor4<T> mask, PerBatch first_key) {
  return {mask, first_key, true};
}
/// The same where true drops; keys before first_key are kept.
template <class T>
ATTN_ALWAYS_INLINE NewKeysMask drop_where(Tensor4<T> mask, PerBatch first_key) {
  return {mask, first_key, false};
}

// A buffer or Eigen matrix serves as its view, and outlives the mask: a temporary does not compile.
template <class T>
ATTN_ALWAYS_INLINE NewKeysMask keep_where(const Tensor4Buffer<T>& mask, PerBatch first_key) {
  return keep_where(mask.view(), first_key);
}
template <class T>
NewKeysMask keep_where(const Tensor4Buffer<T>&&, PerBatch) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
ATTN_ALWAYS_INLINE NewKeysMask keep_where(Matrix&& mask, PerBatch first_key) {
  return keep_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)), first_key);
}
template <class T>
ATTN_ALWAYS_INLINE NewKeysMask drop_where(const Tensor4Buffer<T>& mask, PerBatch first_key) {
  return drop_where(mask.view(), first_key);
}
template <class T>
NewKeysMask drop_where(const Tensor4Buffer<T>&&, PerBatch) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
ATTN_ALWAYS_INLINE NewKeysMask drop_where(Matrix&& mask, PerBatch first_key) {
  return drop_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)), first_key);
}

}  // namespace attn

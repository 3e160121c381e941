// attn/masks/repeat.hpp - level 7: a mask of few batches for a call of many.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tile.hpp"

namespace attn {

/// Batch b of the call takes the mask's batch b % count.
template <class M>
class RepeatedMask : public Mask {
 public:
  static constexpr bool kChangesScores = M::kChangesScores;

  ATTN_ALWAYS_INLINE RepeatedMask(M mask, Index count) : mask_(std::move(mask)), count_(count) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    ScorePosition position = at;
    position.batch %= count_;
    return mask_.allows(position);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return mask_.key_range(repeated(rows), key_length);
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return detail::keys_within(mask_, repeated(rows), keys, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return mask_.row_range(repeated(rows), keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return mask_.cover(repeated(rows), keys);
  }
  ATTN_ALWAYS_INLINE bool modifies() const { return mask_.modifies(); }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    mask_.modify(repeated(tile));
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    mask_.apply(repeated(tile));
  }
  template <class A>
  ATTN_ALWAYS_INLINE void reapply(const ScoreTile<A>& tile) const {
    detail::reapply(mask_, repeated(tile));
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.declare_repeated(mask_, count_);
  }

 private:
  ATTN_ALWAYS_INLINE RowBlock repeated(RowBlock rows) const {
    rows.batch %= count_;
    return rows;
  }
  template <class A>
  ATTN_ALWAYS_INLINE ScoreTile<A> repeated(ScoreTile<A> tile) const {
    tile.rows.batch %= count_;
    return tile;
  }

  M mask_;
  Index count_;
};

/// Batch b takes the mask's batch b % count: what the mask looks at, tensors and numbers each
/// batch, has `count` batches (or 1), and its lambdas see the batch b % count. Swin's shifted
/// windows: the mask [windows, 1, N, N] of a batch of images x windows is
/// repeat_batch(keep_where(mask), windows). Queries stand where their own batch of the call says:
/// causal_from inside takes one number.
///
///   mask    any mask or composition, biases and score functions too
///   count   1 or more (else an OptionError); divides the batch of q (else a ShapeError)
template <class M, class = std::enable_if_t<is_mask_v<M>>>
ATTN_ALWAYS_INLINE RepeatedMask<M> repeat_batch(M mask, Index count) {
  return RepeatedMask<M>(std::move(mask), count);
}

}  // namespace attn

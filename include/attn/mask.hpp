// attn/mask.hpp - level 8: which keys a query may see, and what is added to its scores.
//
// Masks and biases are small values, combined with &: a key must pass ALL masks, biases add up, and
// what changes scores is applied left to right. With |, of masks that only keep or drop, a key must
// pass either. A dropped key is absent: nothing of it, NaN and infinity included, can reach the
// output.
//
// Where positions matter (causal masks, windows, ALiBi, lambdas), query i stands at key i +
// options.query_offset, in a cache behind its past, else at i + Sk - Sq; causal() refuses to take
// the last for granted.
//
// Every mask answers four questions, each at its own cost:
//   allows(position)        may this query see this key?
//   key_range(rows, Sk)     which keys can matter to these rows at all?   (skips whole tiles; a
//                           mask that leaves gaps also says which of a tile's: keys_within)
//   row_range(rows, keys)   which of these rows can see any of these keys?
//   cover(rows, keys)       does it drop none, some or all of this tile?  (full tiles run no mask)
// and acts on a tile of scores: modify (biases, score functions), then apply (dropped ->
// -infinity).
//
// Masks see tiles: a new one costs a few small functions. Those that are tensors, the dearest, have
// kernels of their own, as ALiBi has (MaskKernels in detail/kernels/kernel_table.hpp).
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/masks/concept.hpp"
#include "attn/masks/either.hpp"
#include "attn/masks/function.hpp"
#include "attn/masks/new_keys.hpp"
#include "attn/masks/positional.hpp"
#include "attn/masks/repeat.hpp"
#include "attn/masks/segments.hpp"
#include "attn/masks/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

namespace detail {
inline namespace ATTN_BUILD {

/// Drops from a tile what `mask` drops; `again`: where scores have changed since its modify().
template <class A, class M>
void apply_one(const ScoreTile<A>& tile, const M& mask, bool again) {
  if (mask.cover(tile.rows, tile.keys) == Cover::all) return;
  if (again) {
    reapply(mask, tile);
  } else {
    mask.apply(tile);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// Both masks: a key must pass both; scores are changed by `Left` first.
template <class Left, class Right>
class BothMasks : public Mask {
 public:
  static constexpr bool kChangesScores = Left::kChangesScores || Right::kChangesScores;

  ATTN_ALWAYS_INLINE BothMasks(Left left, Right right)
      : left_(std::move(left)), right_(std::move(right)) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return left_.allows(at) && right_.allows(at);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return left_.key_range(rows, key_length) & right_.key_range(rows, key_length);
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return detail::keys_within(right_, rows, detail::keys_within(left_, rows, keys, key_length),
                               key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return left_.row_range(rows, keys) & right_.row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return left_.cover(rows, keys) & right_.cover(rows, keys);
  }
  ATTN_ALWAYS_INLINE bool modifies() const { return left_.modifies() || right_.modifies(); }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    left_.modify(tile);
    right_.modify(tile);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    detail::apply_one(tile, left_, right_.modifies());
    detail::apply_one(tile, right_, false);
  }
  /// apply() where a mask to the right of both has changed scores since modify().
  template <class A>
  ATTN_ALWAYS_INLINE void reapply(const ScoreTile<A>& tile) const {
    detail::apply_one(tile, left_, true);
    detail::apply_one(tile, right_, true);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    left_.declare(checker);
    right_.declare(checker);
  }

 private:
  Left left_;
  Right right_;
};

template <class Left, class Right, class = std::enable_if_t<is_mask_v<Left> && is_mask_v<Right>>>
ATTN_ALWAYS_INLINE BothMasks<Left, Right> operator&(Left left, Right right) {
  return BothMasks<Left, Right>(std::move(left), std::move(right));
}

template <class Left, class Right, class = std::enable_if_t<is_mask_v<Left> && is_mask_v<Right>>>
ATTN_ALWAYS_INLINE BothMasks<Left, Right> operator&&(Left left, Right right) {
  static_assert(!is_mask_v<Left>, "attn: masks are combined with &, not with &&");
  return std::move(left) & std::move(right);
}

namespace detail {
inline namespace ATTN_BUILD {

/// What AnyMask calls beside the stages of the mask that it holds.
template <class M>
struct HeldMask {
  static bool allows(const void* mask, const ScorePosition& at) {
    return static_cast<const M*>(mask)->allows(at);
  }
  static void declare(const void* mask, void* checker) {
    static_cast<const M*>(mask)->declare(*static_cast<MaskChecker*>(checker));
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail

/// A mask chosen at run time: holds any mask or composition, by value. Default: no_mask(). The bits
/// are those of the mask it holds. In a union, one that holds biases or score functions is an
/// OptionError of the call: the compiler cannot see them. A lambda it holds must accept float and
/// double scores. Cost: one allocation when it is made; calls go through a table once a tile. One
/// that another file made computes as that file's flags say, and raises as the call's do.
class AnyMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE AnyMask() : AnyMask(no_mask()) {}
  template <class M, class = std::enable_if_t<is_mask_v<M> && !std::is_same_v<M, AnyMask>>>
  ATTN_ALWAYS_INLINE AnyMask(M mask) : AnyMask(std::make_shared<const M>(std::move(mask))) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const { return allows_(held_.get(), at); }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return in_float_.keys_within(rows, {0, key_length}, key_length);
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return in_float_.keys_within(rows, keys, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return in_float_.row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return in_float_.cover(rows, keys);
  }
  ATTN_ALWAYS_INLINE bool modifies() const { return in_float_.modifies(); }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    stage<A>().modify(tile);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    stage<A>().apply(tile);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void reapply(const ScoreTile<A>& tile) const {
    stage<A>().reapply(tile);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    declare_(held_.get(), &checker);
  }

 private:
  template <class M>
  ATTN_ALWAYS_INLINE explicit AnyMask(std::shared_ptr<const M> mask)
      : held_(mask),
        in_float_(*mask),
        in_double_(*mask),
        allows_(&detail::HeldMask<M>::allows),
        declare_(&detail::HeldMask<M>::declare) {}

  template <class A>
  ATTN_ALWAYS_INLINE const detail::MaskStage<A>& stage() const {
    if constexpr (std::is_same_v<A, float>) {
      return in_float_;
    } else {
      return in_double_;
    }
  }

  std::shared_ptr<const void> held_;
  detail::MaskStage<float> in_float_;
  detail::MaskStage<double> in_double_;
  bool (*allows_)(const void*, const ScorePosition&);
  void (*declare_)(const void*, void* checker);
};
}  // namespace attn

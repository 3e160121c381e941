// attn/mask.hpp - level 8: which keys a query may see, and what is added to its scores.
//
// Masks and biases are small values, combined with &: a key must pass ALL masks, biases add up, and
// what changes scores is applied left to right. A dropped key is absent: nothing of it, NaN and
// infinity included, can reach the output.
//
// Where positions matter (causal masks, windows, ALiBi, lambdas), query i stands at key i +
// options.query_offset, in a cache behind its past, else at i + Sk - Sq; causal() refuses to take
// the last for granted.
//
// Every mask answers three questions, each at its own cost:
//   allows(position)        may this query see this key?
//   key_range(rows, Sk)     which keys can matter to these rows at all?   (skips whole tiles)
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
#include "attn/masks/concept.hpp"
#include "attn/masks/function.hpp"
#include "attn/masks/positional.hpp"
#include "attn/masks/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// Both masks: a key must pass both; scores are changed by `Left` first.
template <class Left, class Right>
class BothMasks : public Mask {
 public:
  BothMasks(Left left, Right right) : left_(std::move(left)), right_(std::move(right)) {}

  bool allows(const ScorePosition& at) const { return left_.allows(at) && right_.allows(at); }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return left_.key_range(rows, key_length) & right_.key_range(rows, key_length);
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const {
    return left_.cover(rows, keys) & right_.cover(rows, keys);
  }
  bool modifies() const { return left_.modifies() || right_.modifies(); }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    left_.modify(tile);
    right_.modify(tile);
  }
  template <class A>
  void apply(const ScoreTile<A>& tile, bool modified_later) const {
    if (left_.cover(tile.rows, tile.keys) != Cover::all) {
      left_.apply(tile, modified_later || right_.modifies());
    }
    if (right_.cover(tile.rows, tile.keys) != Cover::all) right_.apply(tile, modified_later);
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    left_.check(checker);
    right_.check(checker);
  }

 private:
  Left left_;
  Right right_;
};

template <class Left, class Right, class = std::enable_if_t<is_mask_v<Left> && is_mask_v<Right>>>
BothMasks<Left, Right> operator&(Left left, Right right) {
  return BothMasks<Left, Right>(std::move(left), std::move(right));
}

inline namespace ATTN_ERRORS {

/// A mask chosen at run time: holds any mask or composition, by value. Default: no_mask(). The bits
/// are those of the mask it holds. A lambda it holds must accept float and double scores.
/// Cost: one allocation when it is made; calls go through a table once a tile.
class AnyMask : public Mask {
 public:
  AnyMask() : AnyMask(no_mask()) {}
  template <class M, class = std::enable_if_t<is_mask_v<M> && !std::is_same_v<M, AnyMask>>>
  AnyMask(M mask) : held_(std::make_shared<Holder<M>>(std::move(mask))) {}

  bool allows(const ScorePosition& at) const { return held_->allows(at); }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return held_->key_range(rows, key_length);
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const { return held_->cover(rows, keys); }
  bool modifies() const { return held_->modifies(); }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    held_->modify(tile);
  }
  template <class A>
  void apply(const ScoreTile<A>& tile, bool modified_later) const {
    held_->apply(tile, modified_later);
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const { held_->check(checker); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual bool allows(const ScorePosition& at) const = 0;
    virtual KeyRange key_range(const RowBlock& rows, Index key_length) const = 0;
    virtual Cover cover(const RowBlock& rows, KeyRange keys) const = 0;
    virtual bool modifies() const = 0;
    virtual void modify(const ScoreTile<float>& tile) const = 0;
    virtual void modify(const ScoreTile<double>& tile) const = 0;
    virtual void apply(const ScoreTile<float>& tile, bool modified_later) const = 0;
    virtual void apply(const ScoreTile<double>& tile, bool modified_later) const = 0;
    virtual void check(detail::MaskChecker& checker) const = 0;
  };

  template <class M>
  struct Holder final : Interface {
    explicit Holder(M m) : mask(std::move(m)) {}
    bool allows(const ScorePosition& at) const override { return mask.allows(at); }
    KeyRange key_range(const RowBlock& rows, Index key_length) const override {
      return mask.key_range(rows, key_length);
    }
    Cover cover(const RowBlock& rows, KeyRange keys) const override {
      return mask.cover(rows, keys);
    }
    bool modifies() const override { return mask.modifies(); }
    void modify(const ScoreTile<float>& tile) const override { mask.modify(tile); }
    void modify(const ScoreTile<double>& tile) const override { mask.modify(tile); }
    void apply(const ScoreTile<float>& tile, bool modified_later) const override {
      mask.apply(tile, modified_later);
    }
    void apply(const ScoreTile<double>& tile, bool modified_later) const override {
      mask.apply(tile, modified_later);
    }
    void check(detail::MaskChecker& checker) const override { mask.check(checker); }

    M mask;
  };

  std::shared_ptr<const Interface> held_;
};

}  // namespace ATTN_ERRORS
}  // namespace attn

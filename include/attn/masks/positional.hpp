// attn/masks/positional.hpp - level 7: masks that follow from positions: causal masks, sliding
// windows, key lengths. They skip the tiles they drop, and run no code in the tiles they keep.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/masks/band.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"
#include "attn/tile.hpp"

namespace attn {

/// An open side of a sliding_window.
inline constexpr Index kUnlimited = (std::numeric_limits<Index>::max)();

/// Every key is seen.
struct NoMask : Mask {};
inline NoMask no_mask() { return {}; }

/// Key j is seen by the query at position p if j <= p.
class CausalMask : public Mask {
 public:
  enum class Alignment { unset, top_left, bottom_right, from_offset };

  explicit CausalMask(Alignment alignment, PerBatch offset = 0)
      : alignment_(alignment), offset_(offset) {}

  bool allows(const ScorePosition& at) const { return kBand.allows(at); }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return kBand.key_range(rows, key_length);
  }
  RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return kBand.row_range(rows, keys);
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const { return kBand.cover(rows, keys); }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    kBand.apply(tile);
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    switch (alignment_) {
      case Alignment::unset:
        checker.use_position("causal()", detail::MaskChecker::Need::explicit_offset);
        break;
      case Alignment::top_left:
        checker.declare_offset_of_mask("causal_top_left()", PerBatch(0));
        break;
      case Alignment::bottom_right:
        checker.declare_bottom_right("causal_bottom_right()");
        break;
      case Alignment::from_offset:
        checker.declare_offset_of_mask("causal_from(offset)", offset_);
        break;
    }
  }

 private:
  static constexpr detail::Band kBand = detail::Band::of(kUnlimited, 0);
  Alignment alignment_;
  PerBatch offset_;
};

/// Causal; where positions are not set otherwise, Sq must equal Sk (a ShapeError names the
/// choices).
inline CausalMask causal() { return CausalMask(CausalMask::Alignment::unset); }
/// Causal with query 0 at key 0 (ONNX without a cache, PyTorch's is_causal).
inline CausalMask causal_top_left() { return CausalMask(CausalMask::Alignment::top_left); }
/// Causal with the last query at the last key: offset Sk - Sq (FlashAttention's causal).
inline CausalMask causal_bottom_right() { return CausalMask(CausalMask::Alignment::bottom_right); }
/// Causal with query 0 at position `offset`, one number or one each batch.
inline CausalMask causal_from(PerBatch offset) {
  return CausalMask(CausalMask::Alignment::from_offset, offset);
}

/// Keys p - left .. p + right of the query at position p, both ends counted.
class SlidingWindowMask : public Mask {
 public:
  SlidingWindowMask(Index left, Index right)
      : left_(left), right_(right), band_(detail::Band::of(left, right)) {}

  bool allows(const ScorePosition& at) const { return band_.allows(at); }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return band_.key_range(rows, key_length);
  }
  RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return band_.row_range(rows, keys);
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const { return band_.cover(rows, keys); }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    band_.apply(tile);
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    if (left_ < 0 || right_ < 0) {
      checker.raise_option("sliding_window(left, right) takes 0 or more on each side, got left " +
                           std::to_string(left_) + ", right " + std::to_string(right_));
    }
    checker.use_position("sliding_window()");
  }

 private:
  Index left_, right_;
  detail::Band band_;
};

/// A window of W keys that ends at the query is sliding_window(W - 1, 0). kUnlimited leaves a side
/// open; a negative side is an OptionError.
inline SlidingWindowMask sliding_window(Index left, Index right) { return {left, right}; }

/// Key j is seen if j < length(batch): padding after the end.
class KeyLengthsMask : public Mask {
 public:
  explicit KeyLengthsMask(PerBatch lengths) : lengths_(lengths) {}

  bool allows(const ScorePosition& at) const { return at.key < lengths_[at.batch]; }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return {0, (std::min)(key_length, lengths_[rows.batch])};
  }
  RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return {0, keys.begin < lengths_[rows.batch] ? rows.count : 0};
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const {
    const Index length = lengths_[rows.batch];
    return keys.end <= length ? Cover::all : keys.begin >= length ? Cover::none : Cover::partial;
  }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    const A dropped = detail::negative_infinity<A>();
    for (Index key = (std::max)(tile.keys.begin, lengths_[tile.rows.batch]); key < tile.keys.end;
         ++key) {
      for (Index row = 0; row < tile.rows.count; ++row) tile(row, key) = dropped;
    }
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    checker.use_key_lengths(lengths_);
  }

 private:
  PerBatch lengths_;
};

/// How many keys are valid, one number or one each batch; outside 0..Sk is an OptionError.
inline KeyLengthsMask key_lengths(PerBatch lengths) { return KeyLengthsMask(lengths); }
template <class T, class Allocator,
          std::enable_if_t<!std::is_convertible_v<std::vector<T, Allocator>&, PerBatch>, int> = 0>
KeyLengthsMask key_lengths(const std::vector<T, Allocator>&) {
  static_assert(std::is_same_v<T, Index>,
                "attn: key_lengths takes signed integers of 32 or 64 bits: make it a "
                "std::vector<attn::Index>");
  return KeyLengthsMask(0);
}

}  // namespace attn

// attn/masks/positional.hpp - level 7: masks that follow from positions: causal masks, sliding
// windows, key lengths, first keys. They skip the tiles they drop, and run no code in the tiles
// they keep.
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
ATTN_ALWAYS_INLINE NoMask no_mask() { return {}; }

/// Key j is seen by the query at position p if j <= p.
class CausalMask : public Mask {
 public:
  enum class Alignment { unset, top_left, bottom_right, from_offset };

  ATTN_ALWAYS_INLINE explicit CausalMask(Alignment alignment, PerBatch offset = 0)
      : alignment_(alignment), offset_(offset) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const { return band().allows(at); }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return band().key_range(rows, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return band().row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return band().cover(rows, keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    band().apply(tile);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
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
  ATTN_ALWAYS_INLINE static constexpr detail::Band band() {
    return detail::Band::of(kUnlimited, 0);
  }

  Alignment alignment_;
  PerBatch offset_;
};

/// Causal; where positions are not set otherwise, Sq must equal Sk (a ShapeError names the
/// choices).
ATTN_ALWAYS_INLINE CausalMask causal() { return CausalMask(CausalMask::Alignment::unset); }
/// Causal with query 0 at key 0 (ONNX without a cache, PyTorch's is_causal).
ATTN_ALWAYS_INLINE CausalMask causal_top_left() {
  return CausalMask(CausalMask::Alignment::top_left);
}
/// Causal with the last query at the last key: offset Sk - Sq (FlashAttention's causal).
ATTN_ALWAYS_INLINE CausalMask causal_bottom_right() {
  return CausalMask(CausalMask::Alignment::bottom_right);
}
/// Causal with query 0 at position `offset`, one number or one each batch.
ATTN_ALWAYS_INLINE CausalMask causal_from(PerBatch offset) {
  return CausalMask(CausalMask::Alignment::from_offset, offset);
}

/// Keys p - left .. p + right of the query at position p, both ends counted.
class SlidingWindowMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE SlidingWindowMask(Index left, Index right) : left_(left), right_(right) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const { return band().allows(at); }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return band().key_range(rows, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return band().row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return band().cover(rows, keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    band().apply(tile);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    if (left_ < 0 || right_ < 0) {
      checker.raise_option({"sliding_window(left, right) takes 0 or more on each side, got left ",
                            left_, ", right ", right_});
    }
    checker.use_position("sliding_window()");
  }

 private:
  ATTN_ALWAYS_INLINE detail::Band band() const { return detail::Band::of(left_, right_); }

  Index left_, right_;
};

/// A window of W keys that ends at the query is sliding_window(W - 1, 0). kUnlimited leaves a side
/// open; a negative side is an OptionError.
ATTN_ALWAYS_INLINE SlidingWindowMask sliding_window(Index left, Index right) {
  return {left, right};
}

/// Keys begin(batch) .. end(batch) - 1 are seen, by every query: what the masks below share.
class KeySpanMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return span(at.batch).allows(at);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return span(rows.batch).key_range(key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return span(rows.batch).row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return span(rows.batch).cover(keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    span(tile.rows.batch).apply(tile);
  }

 protected:
  ATTN_ALWAYS_INLINE KeySpanMask(PerBatch begin, PerBatch end) : begin_(begin), end_(end) {}

  PerBatch begin_, end_;

 private:
  ATTN_ALWAYS_INLINE detail::KeySpan span(Index batch) const {
    return {{begin_[batch], end_[batch]}};
  }
};

/// Key j is seen if j < length(batch): padding after the end.
class KeyLengthsMask : public KeySpanMask {
 public:
  ATTN_ALWAYS_INLINE explicit KeyLengthsMask(PerBatch lengths) : KeySpanMask(0, lengths) {}

  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.use_key_lengths(end_);
  }
};

/// How many keys are valid, one number or one each batch; outside 0..Sk is an OptionError.
ATTN_ALWAYS_INLINE KeyLengthsMask key_lengths(PerBatch lengths) { return KeyLengthsMask(lengths); }
template <class T, class Allocator,
          std::enable_if_t<!std::is_convertible_v<std::vector<T, Allocator>&, PerBatch>, int> = 0>
ATTN_ALWAYS_INLINE KeyLengthsMask key_lengths(const std::vector<T, Allocator>&) {
  static_assert(std::is_same_v<T, Index>,
                "attn: key_lengths takes signed integers of 32 or 64 bits: make it a "
                "std::vector<attn::Index>");
  return KeyLengthsMask(0);
}

/// Key j is seen if j < count(batch), by every query.
class FirstKeysMask : public KeySpanMask {
 public:
  ATTN_ALWAYS_INLINE explicit FirstKeysMask(PerBatch count) : KeySpanMask(0, count) {}

  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.use_first_keys(end_);
  }
};

/// Keys 0 .. count - 1, one number or one each batch, which every query sees: one side of a union.
///   causal() | first_keys(n)                              a prefix, all of it seen (prefix LM)
///   first_keys(4) | sliding_window(1023, 0)               attention sinks before a window
///   first_keys(g) | sliding_window(w, w)                  global tokens (Longformer, BigBird)
/// `count` may be more than the keys that there are; a negative one is an OptionError. To be seen
/// beyond a causal diagonal is what a union means; (...) & causal() ends at the query again.
/// A RollingKeyValueCache drops those before its window, unless it keeps them as
/// CacheShape::first_tokens. Source: G. Xiao et al., "Efficient streaming language models with
/// attention sinks" (2023).
ATTN_ALWAYS_INLINE FirstKeysMask first_keys(PerBatch count) { return FirstKeysMask(count); }

/// Key j is seen if begin(batch) <= j < end(batch).
class KeysBetweenMask : public KeySpanMask {
 public:
  ATTN_ALWAYS_INLINE KeysBetweenMask(PerBatch begin, PerBatch end) : KeySpanMask(begin, end) {}

  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.use_keys_between(begin_, end_, kUnlimited);
  }
};

/// Keys begin .. end - 1, each one number or one each batch: keys_between(padding, kUnlimited) for
/// padding before the first token; an end of kUnlimited is that of all keys. Positions count from
/// key 0, the padding included; an end before Sk leaves open where the queries stand, as
/// key_lengths does, unless it is a side of a union. Anything but 0 <= begin <= end <= Sk is an
/// OptionError.
ATTN_ALWAYS_INLINE KeysBetweenMask keys_between(PerBatch begin, PerBatch end) {
  return {begin, end};
}

}  // namespace attn

// attn/masks/function.hpp - level 7: ALiBi, and masks and score functions that are the user's
// lambdas.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/masks/score_function.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tile.hpp"

namespace attn {

inline namespace ATTN_BUILD {

/// The slopes of ALiBi: for n heads, a power of two, 2^(-8/n), 2^(-16/n), ... 2^-8; otherwise those
/// of the power of two below n, then every second of the one above.
/// Source: O. Press, N. Smith, M. Lewis, "Train short, test long" (2021).
inline std::vector<double> alibi_slopes(Index num_heads) {
  std::vector<double> slopes;
  for (Index head = 0; head < num_heads; ++head) {
    slopes.push_back(detail::alibi_slope(head, num_heads));
  }
  return slopes;
}

}  // namespace ATTN_BUILD

namespace detail {
inline namespace ATTN_BUILD {

/// Subtracts slope(head) * |position - key| from the scores of a tile.
template <class A>
void subtract_distances(const ScoreTile<A>& tile, Span<const double> slopes, bool uses_default) {
  const auto& kernels = mask_kernels<A>(tile.instruction_set);
  tile.for_each_part(
      [&](A* scores, Index lines, Index count, Index stride, Index head, Index query) {
        const A slope =
            static_cast<A>(uses_default ? alibi_slope(head, tile.rows.num_heads) : slopes[head]);
        const Index distance = query + tile.rows.query_offset - tile.keys.begin;
        kernels.slope_scores(scores, lines, count, stride,
                             tile.lines_are_keys() ? distance : -distance, slope);
      });
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// score - slope(head) * |p - key| for the query at position p.
class AlibiMask : public Mask {
 public:
  static constexpr bool kChangesScores = true;

  ATTN_ALWAYS_INLINE AlibiMask() = default;
  ATTN_ALWAYS_INLINE explicit AlibiMask(Span<const double> slopes)
      : slopes_(slopes), uses_default_(false) {}

  ATTN_ALWAYS_INLINE bool modifies() const { return true; }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    detail::subtract_distances(tile, slopes_, uses_default_);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    if (!uses_default_) checker.check_per_head("alibi slopes", slopes_, false);
    checker.use_position("alibi()");
  }

 private:
  Span<const double> slopes_;
  bool uses_default_ = true;
};

/// ALiBi with the slopes alibi_slopes(Hq).
ATTN_ALWAYS_INLINE AlibiMask alibi() { return AlibiMask(); }
/// ALiBi with one slope a query head.
ATTN_ALWAYS_INLINE AlibiMask alibi(Span<const double> slopes) { return AlibiMask(slopes); }

namespace detail {
inline namespace ATTN_BUILD {

/// Drops the scores whose position the predicate does not answer with `keeps`.
template <class A, class F>
void apply_predicate(const ScoreTile<A>& tile, const F& predicate, bool keeps) {
  const A dropped = negative_infinity<A>();
  tile.for_each([&](A& score, const ScorePosition& at) {
    if (static_cast<bool>(predicate(at)) != keeps) score = dropped;
  });
}
template <class A, class F>
void apply_function(const ScoreTile<A>& tile, const F& function) {
  tile.for_each(
      [&](A& score, const ScorePosition& at) { score = static_cast<A>(function(score, at)); });
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// The user's predicate: f(position) keeps (or drops) the key.
template <class F>
class PredicateMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE PredicateMask(F predicate, bool keeps)
      : predicate_(std::move(predicate)), keeps_(keeps) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return static_cast<bool>(predicate_(at)) == keeps_;
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    detail::apply_predicate(tile, predicate_, keeps_);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.use_position(keeps_ ? "keep_if()" : "drop_if()");
  }

 private:
  F predicate_;
  bool keeps_;
};

/// Keeps the keys for which f(ScorePosition) is true. f must be pure; several threads may call it.
/// Cost: by itself it skips nothing: all Sq x Sk scores are computed, and f is asked for each. A
/// mask beside it that bounds it, keep_if(f) & sliding_window(127, 0), skips what the bound drops,
/// and f is asked of the rest alone. A mask of your own can skip by itself: derive from Mask.
template <class F>
ATTN_ALWAYS_INLINE PredicateMask<F> keep_if(F f) {
  static_assert(std::is_invocable_r_v<bool, const F&, ScorePosition>,
                "attn::keep_if takes a const callable bool(ScorePosition)");
  return PredicateMask<F>(std::move(f), true);
}
/// Drops the keys for which f(ScorePosition) is true; otherwise as keep_if.
template <class F>
ATTN_ALWAYS_INLINE PredicateMask<F> drop_if(F f) {
  static_assert(std::is_invocable_r_v<bool, const F&, ScorePosition>,
                "attn::drop_if takes a const callable bool(ScorePosition)");
  return PredicateMask<F>(std::move(f), false);
}

/// The user's score function: score = f(score, position).
template <class F>
class ScoreFunction : public Mask {
 public:
  static constexpr bool kChangesScores = true;

  ATTN_ALWAYS_INLINE explicit ScoreFunction(F function) : function_(std::move(function)) {}

  ATTN_ALWAYS_INLINE bool modifies() const { return true; }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    static_assert(std::is_invocable_r_v<A, const F&, A, ScorePosition>,
                  "attn::modify_score takes a const callable that maps (score, ScorePosition) to a "
                  "score, for scores of the accumulation type (float, or double if a tensor is)");
    static_assert(!std::is_same_v<A, double> || !detail::takes_float_v<F>,
                  "attn: this modify_score function takes float, and would round the scores of a "
                  "call with a tensor of double: let it take auto (as AnyMask needs) or double");
    if constexpr (std::is_invocable_r_v<A, const F&, A, ScorePosition>) {
      detail::apply_function(tile, function_);
    }
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.use_position("modify_score()");
  }

 private:
  F function_;
};

/// score = f(score, ScorePosition), after scale and softcap. A result of -infinity drops the key,
/// unless what stands to the right changes that score again: keep_if and drop_if drop for good. f
/// must be pure; it may also be called for keys that other masks drop, with any score. Scores are
/// float, or double if a tensor is: f(auto score, ScorePosition) serves both, and one that takes
/// float does not compile in a call of double, where it would round.
template <class F>
ATTN_ALWAYS_INLINE ScoreFunction<F> modify_score(F f) {
  return ScoreFunction<F>(std::move(f));
}

}  // namespace attn

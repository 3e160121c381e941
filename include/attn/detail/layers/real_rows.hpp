// attn/detail/layers/real_rows.hpp - level 15: queries that are padding, and see nothing.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Of the queries of batch b the last counts[b] see every key, and those before none.
class RealRowsMask : public Mask {
 public:
  ATTN_ALWAYS_INLINE RealRowsMask(PerBatch counts, Index query_length)
      : counts_(counts), query_length_(query_length) {}

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return at.query >= first(at.batch);
  }
  ATTN_ALWAYS_INLINE KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return {0, rows.query_end() > first(rows.batch) ? key_length : 0};
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange) const {
    const Index real = first(rows.batch);
    return rows.query_begin() >= real ? Cover::all
           : rows.query_end() <= real ? Cover::none
                                      : Cover::partial;
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    const Index real = first(tile.rows.batch);
    tile.for_each([real](A& score, const ScorePosition& at) {
      if (at.query < real) score = negative_infinity<A>();
    });
  }
  ATTN_ALWAYS_INLINE void declare(MaskChecker& checker) const { checker.allow_padding(); }

 private:
  ATTN_ALWAYS_INLINE Index first(Index batch) const { return query_length_ - counts_[batch]; }

  PerBatch counts_;
  Index query_length_;
};

}  // namespace detail
}  // namespace attn

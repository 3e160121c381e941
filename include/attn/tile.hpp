// attn/tile.hpp - level 3: how the score matrix of one group is cut into tiles.
//
// A group is the query heads that share their key and their value head. Its rows are (query head,
// query) pairs, heads first: row = (head - first head) * query_length + query. Prefill (many
// queries) and decode (many heads, one query) are the same loop over rows.
#pragma once

#include <algorithm>

#include "attn/config.hpp"
#include "attn/instruction_set.hpp"

namespace attn {

/// One entry of the score tensor, as masks and the user's lambdas see it. `query_position` is the
/// query's position among the keys: query + offset(batch).
struct ScorePosition {
  Index batch, head, query, key, query_position;
};

/// begin .. end - 1.
struct IndexRange {
  Index begin = 0, end = 0;

  ATTN_ALWAYS_INLINE constexpr Index size() const { return end > begin ? end - begin : 0; }
  ATTN_ALWAYS_INLINE constexpr bool empty() const { return end <= begin; }
  friend ATTN_ALWAYS_INLINE constexpr IndexRange operator&(IndexRange a, IndexRange b) {
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  }
  /// The smallest range that holds both: what lies between them too.
  friend ATTN_ALWAYS_INLINE constexpr IndexRange operator|(IndexRange a, IndexRange b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    return {a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
  }
};
/// Of keys, counted from the first of the sequence.
using KeyRange = IndexRange;
/// Of rows, counted from the first of a RowBlock.
using RowRange = IndexRange;

/// What a mask does to a tile: drops all of it, some of it (or cannot tell), or nothing.
enum class Cover { none, partial, all };

/// A tile that is dropped by one mask is dropped; one that both keep whole is kept whole.
ATTN_ALWAYS_INLINE constexpr Cover operator&(Cover a, Cover b) {
  if (a == Cover::none || b == Cover::none) return Cover::none;
  return a == Cover::all && b == Cover::all ? Cover::all : Cover::partial;
}
/// A tile that one side of a union keeps whole is kept whole; one that both drop is dropped.
ATTN_ALWAYS_INLINE constexpr Cover operator|(Cover a, Cover b) {
  if (a == Cover::all || b == Cover::all) return Cover::all;
  return a == Cover::none && b == Cover::none ? Cover::none : Cover::partial;
}

template <class A>
struct ScoreTile;

namespace detail {
inline namespace ATTN_BUILD {

template <class Block, class F>
void for_each_run(const Block& block, const F& f);
template <class A, class F>
void for_each_part(const ScoreTile<A>& tile, const F& f);
template <class A, class F>
void for_each_score(const ScoreTile<A>& tile, const F& f);

}  // namespace ATTN_BUILD
}  // namespace detail

/// Consecutive rows of one group: first_row .. first_row + count - 1.
struct RowBlock {
  Index batch = 0;
  Index num_heads = 0;     ///< Hq, of all groups
  Index first_head = 0;    ///< the group's first query head
  Index query_length = 0;  ///< Sq
  Index query_offset = 0;  ///< position of query 0 among the keys
  Index first_row = 0;
  Index count = 0;

  ATTN_ALWAYS_INLINE Index head(Index row) const {
    return first_head + (first_row + row) / query_length;
  }
  ATTN_ALWAYS_INLINE Index query(Index row) const { return (first_row + row) % query_length; }

  /// Calls f(begin, end, head, query) for each run of rows [begin, end) of one head, whose first
  /// row is `query`.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_run(const F& f) const {
    detail::for_each_run(*this, f);
  }

  /// Whether its rows are of more than one head.
  ATTN_ALWAYS_INLINE bool crosses_heads() const { return query(0) + count > query_length; }
  /// The smallest query of the block, and one past the largest.
  ATTN_ALWAYS_INLINE Index query_begin() const { return crosses_heads() ? 0 : query(0); }
  ATTN_ALWAYS_INLINE Index query_end() const {
    return crosses_heads() ? query_length : query(0) + count;
  }
  /// The positions of the block's queries: position_begin() .. position_end() - 1.
  ATTN_ALWAYS_INLINE Index position_begin() const { return query_begin() + query_offset; }
  ATTN_ALWAYS_INLINE Index position_end() const { return query_end() + query_offset; }

  /// Rows [begin, begin + size) of this block.
  ATTN_ALWAYS_INLINE RowBlock slice(Index begin, Index size) const {
    RowBlock result = *this;
    result.first_row += begin;
    result.count = size;
    return result;
  }
};

/// The scores of some rows and keys, in either orientation: one of the strides is 1.
template <class A>
struct ScoreTile {
  RowBlock rows;
  KeyRange keys;
  A* scores;         ///< the score of row 0 and key keys.begin
  Index row_stride;  ///< elements
  Index key_stride;
  InstructionSet instruction_set;  ///< of the call

  ATTN_ALWAYS_INLINE A& operator()(Index row, Index key) const {
    return scores[row * row_stride + (key - keys.begin) * key_stride];
  }

  /// Whether a line of adjacent scores belongs to one key, else to one row.
  ATTN_ALWAYS_INLINE bool lines_are_keys() const { return row_stride == 1; }
  /// Calls f(scores, lines, count, stride, head, query) for each run of rows of one head, of which
  /// `query` is the first: `lines` lines of `count` adjacent scores, `stride` apart.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_part(const F& f) const {
    detail::for_each_part(*this, f);
  }

  /// Calls f(score, position) for every entry, the contiguous axis innermost.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each(const F& f) const {
    detail::for_each_score(*this, f);
  }
};

namespace detail {
inline namespace ATTN_BUILD {

template <class Block, class F>
void for_each_run(const Block& block, const F& f) {
  for (Index row = 0; row < block.count;) {
    const Index first = block.query(row);
    const Index end = (std::min)(block.count, row + block.query_length - first);
    f(row, end, block.head(row), first);
    row = end;
  }
}

template <class A, class F>
void for_each_part(const ScoreTile<A>& tile, const F& f) {
  for_each_run(tile.rows, [&](Index begin, Index end, Index head, Index query) {
    A* const first = &tile(begin, tile.keys.begin);
    if (tile.lines_are_keys()) {
      f(first, tile.keys.size(), end - begin, tile.key_stride, head, query);
    } else {
      f(first, end - begin, tile.keys.size(), tile.row_stride, head, query);
    }
  });
}

template <class A, class F>
void for_each_score(const ScoreTile<A>& tile, const F& f) {
  const KeyRange keys = tile.keys;
  for_each_run(tile.rows, [&](Index begin, Index end, Index head, Index query) {
    const Index batch = tile.rows.batch, position = query + tile.rows.query_offset;
    if (tile.lines_are_keys()) {
      for (Index key = keys.begin; key < keys.end; ++key) {
        A* const line = tile.scores + (key - keys.begin) * tile.key_stride;
        for (Index row = begin; row < end; ++row) {
          const Index i = row - begin;
          f(line[row], ScorePosition{batch, head, query + i, key, position + i});
        }
      }
    } else {
      for (Index row = begin; row < end; ++row) {
        const Index i = row - begin;
        A* const line = tile.scores + row * tile.row_stride - keys.begin * tile.key_stride;
        for (Index key = keys.begin; key < keys.end; ++key) {
          f(line[key * tile.key_stride], ScorePosition{batch, head, query + i, key, position + i});
        }
      }
    }
  });
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

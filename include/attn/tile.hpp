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

  constexpr Index size() const { return end > begin ? end - begin : 0; }
  constexpr bool empty() const { return end <= begin; }
  friend constexpr IndexRange operator&(IndexRange a, IndexRange b) {
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  }
};
/// Of keys, counted from the first of the sequence.
using KeyRange = IndexRange;
/// Of rows, counted from the first of a RowBlock.
using RowRange = IndexRange;

/// What a mask does to a tile: drops all of it, some of it (or cannot tell), or nothing.
enum class Cover { none, partial, all };

/// A tile that is dropped by one mask is dropped; one that both keep whole is kept whole.
constexpr Cover operator&(Cover a, Cover b) {
  if (a == Cover::none || b == Cover::none) return Cover::none;
  return a == Cover::all && b == Cover::all ? Cover::all : Cover::partial;
}

/// Consecutive rows of one group: first_row .. first_row + count - 1.
struct RowBlock {
  Index batch = 0;
  Index num_heads = 0;     ///< Hq, of all groups
  Index first_head = 0;    ///< the group's first query head
  Index query_length = 0;  ///< Sq
  Index query_offset = 0;  ///< position of query 0 among the keys
  Index first_row = 0;
  Index count = 0;

  Index head(Index row) const { return first_head + (first_row + row) / query_length; }
  Index query(Index row) const { return (first_row + row) % query_length; }

  /// Calls f(begin, end, head, query) for each run of rows [begin, end) of one head, whose first
  /// row is `query`.
  template <class F>
  void for_each_run(const F& f) const {
    for (Index row = 0; row < count;) {
      const Index first = query(row);
      const Index end = (std::min)(count, row + query_length - first);
      f(row, end, head(row), first);
      row = end;
    }
  }

  /// Whether its rows are of more than one head.
  bool crosses_heads() const { return query(0) + count > query_length; }
  /// The smallest query of the block, and one past the largest.
  Index query_begin() const { return crosses_heads() ? 0 : query(0); }
  Index query_end() const { return crosses_heads() ? query_length : query(0) + count; }
  /// The positions of the block's queries: position_begin() .. position_end() - 1.
  Index position_begin() const { return query_begin() + query_offset; }
  Index position_end() const { return query_end() + query_offset; }

  /// Rows [begin, begin + size) of this block.
  RowBlock slice(Index begin, Index size) const {
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

  A& operator()(Index row, Index key) const {
    return scores[row * row_stride + (key - keys.begin) * key_stride];
  }

  /// Whether a line of adjacent scores belongs to one key, else to one row.
  bool lines_are_keys() const { return row_stride == 1; }
  /// Calls f(scores, lines, count, stride, head, query) for each run of rows of one head, of which
  /// `query` is the first: `lines` lines of `count` adjacent scores, `stride` apart.
  template <class F>
  void for_each_part(const F& f) const {
    rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
      A* const first = &(*this)(begin, keys.begin);
      if (lines_are_keys()) {
        f(first, keys.size(), end - begin, key_stride, head, query);
      } else {
        f(first, end - begin, keys.size(), row_stride, head, query);
      }
    });
  }

  /// Calls f(score, position) for every entry, the contiguous axis innermost.
  template <class F>
  void for_each(const F& f) const {
    rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
      const Index position = query + rows.query_offset;
      if (lines_are_keys()) {
        for (Index key = keys.begin; key < keys.end; ++key) {
          A* const line = scores + (key - keys.begin) * key_stride;
          for (Index row = begin; row < end; ++row) {
            const Index i = row - begin;
            f(line[row], ScorePosition{rows.batch, head, query + i, key, position + i});
          }
        }
      } else {
        for (Index row = begin; row < end; ++row) {
          const Index i = row - begin;
          A* const line = scores + row * row_stride - keys.begin * key_stride;
          for (Index key = keys.begin; key < keys.end; ++key) {
            f(line[key * key_stride],
              ScorePosition{rows.batch, head, query + i, key, position + i});
          }
        }
      }
    });
  }
};

}  // namespace attn

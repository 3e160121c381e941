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

/// Keys begin .. end - 1.
struct KeyRange {
  Index begin = 0, end = 0;

  constexpr Index size() const { return end > begin ? end - begin : 0; }
  constexpr bool empty() const { return end <= begin; }
  friend constexpr KeyRange operator&(KeyRange a, KeyRange b) {
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  }
};

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

 private:
  bool crosses_heads() const { return query(0) + count > query_length; }
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

namespace detail {

constexpr Index round_up(Index value, Index multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr Index ceil_div(Index value, Index divisor) { return (value + divisor - 1) / divisor; }

/// How one group is cut. A pure function of shapes, so that bits depend on shapes alone: never of
/// the number of threads, the batch size or the contents.
struct TilePlan {
  bool rows_are_lanes = false;  ///< prefill form: one vector lane a row; else one lane a key / dim
  Index row_tile = 0;           ///< rows whose scores are held at the same time
  Index row_block = 0;          ///< rows that share each fetched K/V tile: a work item
  Index key_tile = 0;           ///< keys of a tile; tiles begin at multiples of it
  Index key_split = 0;          ///< keys of a work item; a multiple of key_tile
};

/// `rows`: rows of the group (its query heads times Sq); `lanes`, `row_tile`: the kernel table's;
/// `key_tile`: of heads that are not very wide.
inline TilePlan plan_tiles(Index rows, Index key_length, Index key_dim, Index value_dim,
                           Index lanes, Index row_tile, Index key_tile = 128) {
  TilePlan plan;
  const Index dims = (std::max)(Index{1}, key_dim + value_dim);
  // With few rows most lanes of a row-per-lane tile would idle, and a scalar of K or V that is
  // broadcast to one vector only costs as much as its arithmetic: dot products over dim are faster.
  // Against one tile of keys or less, they lose that to what each row costs by itself.
  plan.rows_are_lanes = rows >= 16 && (rows >= 2 * lanes || key_length <= 128);
  // 128 keys x 48 rows of float scores are 24 KiB: they stay in L1 between the stages (64 to 192
  // keys measured alike). Very wide heads get fewer keys, so that converted K/V tiles stay bounded.
  plan.key_tile = dims <= 1024 ? key_tile : dims <= 2048 ? 64 : 32;
  // Few rows read each tile of K and V from memory in one go, and to begin anew costs time. These
  // leave their scores in L1, K and V in L2.
  if (rows <= 8 && dims <= 512) plan.key_tile = dims <= 256 ? 512 : 256;
  const Index all_keys = (std::max)(Index{1}, ceil_div(key_length, plan.key_tile)) * plan.key_tile;
  if (plan.rows_are_lanes) {
    plan.row_tile = row_tile;
    // Queries and outputs of a block stay within 384 KiB of float, next to the K/V tile in L2.
    // Eight tiles share each K/V tile: one at a time loses 11 points of peak at 4096 keys.
    const Index tiles = (std::min)(Index{8}, 96 * 1024 / dims / row_tile);
    plan.row_block = (std::max)(Index{1}, tiles) * row_tile;
  } else {
    plan.row_tile = plan.row_block = rows;
  }
  // Decode: few rows and long keys. The keys are split, so that one sequence can use several
  // threads. 4096 keys of dim 128 are 4 MiB of float K and V, far above the cost of merging two
  // partial results. With many rows the rows are work enough, and partial results would be large.
  const Index split = 4096;
  plan.key_split = rows <= 64 ? (std::min)(all_keys, split) : all_keys;
  return plan;
}

/// The same for the matrix form. 256 keys make chains of 8 products for each load and store of the
/// outputs, and with the 32 rows of one product their scores are 32 KiB, which stay in L1: with the
/// products left out, the rest takes a tenth less time than with 64 rows, a quarter less under a
/// causal mask at 1024 keys. By AVX512_BF16 (Zen 4) a whole call takes about as long with 128
/// or 512 keys or 64 rows. How AMX likes it was not measured.
inline TilePlan plan_matrix_tiles(Index rows, Index key_length, Index key_dim, Index value_dim,
                                  Index lanes) {
  TilePlan plan = plan_tiles(rows, key_length, key_dim, value_dim, lanes, 32,
                             key_dim + value_dim <= 512 ? 256 : 128);
  plan.row_block *= 2;  // packed keys and values are shared by more rows
  return plan;
}

}  // namespace detail
}  // namespace attn

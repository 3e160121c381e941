// attn/detail/masks/either_scores.hpp - level 6: what a union of two masks drops from a tile.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Calls f(piece) for pieces of a tile of at most `most` scores.
template <class A, class F>
void for_each_piece(const ScoreTile<A>& tile, Index most, const F& f) {
  const Index rows = tile.rows.count, keys = tile.keys.size();
  if (rows == 0 || keys == 0) return;
  const bool by_key = tile.lines_are_keys();
  const Index line = (std::min)(most, by_key ? rows : keys), lines = most / line;
  const Index row_step = by_key ? line : lines, key_step = by_key ? lines : line;
  for (Index row = 0; row < rows; row += row_step) {
    ScoreTile<A> piece = tile;
    piece.rows = tile.rows.slice(row, (std::min)(row_step, rows - row));
    for (Index key = tile.keys.begin; key < tile.keys.end; key += key_step) {
      piece.keys = tile.keys & KeyRange{key, key + key_step};
      piece.scores = &tile(row, key);
      f(piece);
    }
  }
}

/// kept[i] = other[i] where kept[i] is -infinity.
template <class A>
void take_where_absent(A* kept, const A* other, Index count) {
  constexpr Index kStep = 8;  // see fill_absent
  for (; count >= kStep; count -= kStep, kept += kStep, other += kStep) {
    for (Index i = 0; i < kStep; ++i) kept[i] = is_negative_infinity(kept[i]) ? other[i] : kept[i];
  }
  for (Index i = 0; i < count; ++i) kept[i] = is_negative_infinity(kept[i]) ? other[i] : kept[i];
}

/// Drops from a small tile what both masks drop in part: each on scores of its own.
template <class A, class Left, class Right>
void apply_both_sides(const ScoreTile<A>& tile, const Left& left, const Right& right, A* copy) {
  const Index rows = tile.rows.count, keys = tile.keys.size();
  const bool by_key = tile.lines_are_keys();
  const Index lines = by_key ? keys : rows, line = by_key ? rows : keys;
  const Index stride = by_key ? tile.key_stride : tile.row_stride;
  for (Index i = 0; i < lines; ++i) {
    std::memcpy(copy + i * line, tile.scores + i * stride,
                static_cast<std::size_t>(line) * sizeof(A));
  }
  ScoreTile<A> other = tile;
  other.scores = copy;
  (by_key ? other.key_stride : other.row_stride) = line;
  left.apply(tile);
  right.apply(other);
  for (Index i = 0; i < lines; ++i) {
    take_where_absent(tile.scores + i * stride, copy + i * line, line);
  }
}

/// Drops from a tile the keys that both masks drop. The tile is taken in pieces: of most, one mask
/// keeps or drops all.
template <class A, class Left, class Right>
void apply_either(const ScoreTile<A>& tile, const Left& left, const Right& right) {
  constexpr Index kMost = 1024;  // 21 keys of 48 rows: 4 KiB of float, on the stack
  for_each_piece(tile, kMost, [&](const ScoreTile<A>& piece) {
    const Cover on_left = left.cover(piece.rows, piece.keys);
    const Cover on_right = right.cover(piece.rows, piece.keys);
    if (on_left == Cover::all || on_right == Cover::all) return;
    if (on_left == Cover::none) {
      right.apply(piece);
    } else if (on_right == Cover::none) {
      left.apply(piece);
    } else {
      A copy[kMost];
      apply_both_sides(piece, left, right, copy);
    }
  });
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

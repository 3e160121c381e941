// attn/detail/forms/row_tile.hpp - level 7: the rows that are computed together, and which keys
// each vector of them can see.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/softmax_state.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Rows of a block that are computed together, with their queries, softmax state and outputs, which
/// lie as the form of tile has them. Built once a block.
template <class A>
struct RowTile {
  static constexpr Index kMaxVectors = 4;

  RowBlock rows;
  Index padded_rows;  ///< whole vectors of rows, in the forms whose lanes are rows
  A* queries;
  A* out;
  Index out_size;  ///< elements of it, padding included
  SoftmaxState<A> state;
};

/// Which keys of a partly masked tile each vector of rows can see at all: under a causal mask or a
/// window, a staircase. `common` are the keys that all vectors see; before and behind them, each
/// vector has keys of its own.
struct Staircase {
  KeyRange common;
  KeyRange seen[RowTile<float>::kMaxVectors];
  Index vectors = 0;  ///< 0: the tile is not a staircase, all rows use `common`

  KeyRange before(Index v) const { return {seen[v].begin, common.begin}; }
  KeyRange behind(Index v) const { return {common.end, seen[v].end}; }
};

/// The staircase of the keys of a tile, for vectors of `lanes` rows.
template <class A>
Staircase find_staircase(const AttentionCall<A>& call, const RowTile<A>& tile, KeyRange keys,
                         Cover cover, Index lanes) {
  Staircase stairs{keys, {}, 0};
  if (cover != Cover::partial) return stairs;
  stairs.vectors = tile.padded_rows / lanes;
  for (Index v = 0; v < stairs.vectors; ++v) {
    const Index count = (std::min)(lanes, tile.rows.count - v * lanes);
    KeyRange& seen = stairs.seen[v];
    seen = call.keys_within(tile.rows.slice(v * lanes, count), keys);
    if (seen.empty()) seen = {keys.begin, keys.begin};
    stairs.common = stairs.common & seen;
  }
  if (stairs.common.size() == keys.size()) stairs.vectors = 0;  // all see all
  // Vectors with no key in common have all their keys behind an empty range.
  if (stairs.common.empty()) stairs.common = {keys.begin, keys.begin};
  return stairs;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

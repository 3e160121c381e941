// attn/detail/forms/row_tile.hpp - level 7: the rows that are computed together, and which keys
// each vector of them can see.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/forms/online_softmax.hpp"
#include "attn/detail/forms/scratch.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// The rows of a block that are computed together, with their queries and softmax state.
template <class A>
struct RowTile {
  RowBlock rows;
  KeyRange keys;  ///< that can matter to these rows
  A* queries;     ///< [dim][row] in the row-lane form, else [row][dim]
  Index query_stride;
  OnlineSoftmax<A> state;
};

/// The tile of a block that begins at row `first`.
template <class A>
RowTile<A> row_tile(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowBlock& block,
                    Index first) {
  const TilePlan& plan = call.plan;
  RowTile<A> tile;
  tile.rows = block.slice(first, (std::min)(plan.row_tile, block.count - first));
  tile.keys = call.key_range(tile.rows);
  tile.queries = scratch.queries + first * Scratch<A>::query_stride(call);
  tile.query_stride = plan.rows_are_lanes ? plan.row_tile : Scratch<A>::query_stride(call);
  OnlineSoftmax<A>& state = tile.state;
  state.kernels = call.kernels;
  state.rows_are_lanes = plan.rows_are_lanes;
  state.rows = plan.rows_are_lanes ? round_up(tile.rows.count, call.lanes()) : tile.rows.count;
  state.dim = call.value_dim;
  state.max = scratch.max + first;
  state.sum = scratch.sum + first;
  state.correction = scratch.correction + first;
  state.out = scratch.out + first * Scratch<A>::out_stride(call);
  state.out_stride = plan.rows_are_lanes ? plan.row_tile : Scratch<A>::out_stride(call);
  return tile;
}

/// A whole block as one tile of merged states: [row][dim], whatever form the block was computed in.
template <class A>
RowTile<A> merged_tile(const AttentionCall<A>& call, const Scratch<A>& scratch,
                       const RowBlock& block) {
  RowTile<A> tile;
  tile.rows = block;
  tile.queries = nullptr;
  tile.query_stride = 0;
  OnlineSoftmax<A>& state = tile.state;
  state.kernels = call.kernels;
  state.rows = block.count;
  state.dim = call.value_dim;
  state.max = scratch.max;
  state.sum = scratch.sum;
  state.correction = scratch.correction;
  state.out = scratch.out;
  state.out_stride = Scratch<A>::padded_value_dim(call);
  state.reset(block.count, [](Index) { return negative_infinity<A>(); });
  return tile;
}

/// Calls f(tile) for every row tile of a block.
template <class A, class F>
void for_each_row_tile(const AttentionCall<A>& call, const Scratch<A>& scratch,
                       const RowBlock& block, const F& f) {
  for (Index first = 0; first < block.count; first += call.plan.row_tile) {
    f(row_tile(call, scratch, block, first));
  }
}

/// Which keys of a partly masked tile each vector of rows can see at all: under a causal mask or a
/// window, a staircase. `common` are the keys that all vectors see; before and behind them, each
/// vector has keys of its own. Only the row-lane form has more than one vector; what counts as one
/// is AttentionCall::lanes.
struct Staircase {
  static constexpr Index kMaxVectors = 4;
  KeyRange common;
  KeyRange seen[kMaxVectors];
  Index vectors = 0;  ///< 0: the tile is not a staircase, all rows use `common`

  KeyRange before(Index v) const { return {seen[v].begin, common.begin}; }
  KeyRange behind(Index v) const { return {common.end, seen[v].end}; }
};

template <class A>
Staircase find_staircase(const AttentionCall<A>& call, const RowTile<A>& tile, KeyRange keys,
                         Cover cover) {
  const Index lanes = call.lanes();
  Staircase stairs{keys, {}, 0};
  if (!tile.state.rows_are_lanes || cover != Cover::partial) return stairs;
  stairs.vectors = tile.state.rows / lanes;
  for (Index v = 0; v < stairs.vectors; ++v) {
    const Index first = v * lanes;
    KeyRange& seen = stairs.seen[v];
    seen =
        keys & call.key_range(tile.rows.slice(first, (std::min)(lanes, tile.rows.count - first)));
    if (seen.empty()) seen = {keys.begin, keys.begin};
    stairs.common = stairs.common & seen;
  }
  if (stairs.common.size() == keys.size()) stairs.vectors = 0;  // all see all
  // Vectors with no key in common have all their keys behind an empty range.
  if (stairs.common.empty()) stairs.common = {keys.begin, keys.begin};
  return stairs;
}

}  // namespace detail
}  // namespace attn

// attn/detail/loop/walk.hpp - level 9: THE loop: the only one over keys. Whatever is done with
// scores, forward, backward or to look at them, comes by here.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/loop/engine.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Brings the scores of a block of rows, for those of its keys that lie in `split`, to a step.
///
///   rows   how keys and values are stored    detail/rows/    fetch(keys, tile_begin, end)
///   form   how a tile is computed            detail/forms/   take(fetched), scores(tile, ...)
///   step   what it is for                    detail/steps/   step(tile, scores, fetched)
///
/// A new kind of storage, of tile or of use is a policy of its own, not a case in this loop.
template <class A>
void walk_tiles(const AttentionCall<A>& call, const RowBlock& block, KeyRange split,
                const KeyValueRows<A>& rows, TileForm<A>& form, const AnyStep<A>& step) {
  const KeyRange range = call.keys_within(block, split);
  if (range.empty()) return;  // it may begin behind all keys, in the last tile all the same
  // Behind the split too the next keys are prefetched: who works here mostly takes the next one.
  const Index end = call.keys_within(block, {split.begin, call.sizes.key_length}).end;
  const Index size = call.plan.key_tile;
  for (Index tile_begin = range.begin / size * size; tile_begin < range.end; tile_begin += size) {
    const KeyRange keys = call.keys_within(block, range & KeyRange{tile_begin, tile_begin + size});
    if (keys.empty() || call.mask.cover(block, keys) == Cover::none) continue;
    const FetchedRows<A> fetched = rows.fetch(keys, tile_begin, end);
    form.take(fetched);
    for (const RowTile<A>& tile : form) {
      const KeyRange seen = call.keys_within(tile.rows, keys);
      if (seen.empty()) continue;
      const Cover cover = call.mask.cover(tile.rows, seen);
      if (cover == Cover::none) continue;
      const ScoreTile<A> scores = form.scores(tile, seen, cover);
      if (call.mask.modifies()) call.mask.modify(scores);
      if (cover == Cover::partial) call.mask.apply(scores);
      step(tile, scores, fetched);
    }
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

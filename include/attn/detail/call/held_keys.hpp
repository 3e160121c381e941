// attn/detail/call/held_keys.hpp - level 5: queries that see what a cache has let go are refused.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Refuses queries that see keys which a cache has let go: first_held(b) is the first that it still
/// holds for batch b, behind those that it keeps for ever. Masks may hide those between.
template <class A, class FirstHeld>
void require_held_keys(const CallShapes& shapes, const AttentionCall<A>& call,
                       const FirstHeld& first_held) {
  const auto sees = [&](const RowBlock& row, Index key) {
    A score = 0;
    const ScoreTile<A> tile{row, KeyRange{key, key + 1}, &score, 1, 1, call.kernels.table->set};
    const Cover cover = call.mask.cover(row, tile.keys);
    if (cover == Cover::partial) call.mask.apply(tile);
    return cover != Cover::none && !is_negative_infinity(score);
  };
  const auto raise = [&](const RowBlock& row, Index key, Index held) {
    shapes.raise_shape(
        {"query ", row.query(0), " of batch ", row.batch, ", at position ", row.position_begin(),
         ", sees key ", key, ", and the cache holds none before ", held,
         ": it keeps the windows of its last longest_append tokens, and no query may stand further "
         "back unless its mask hides what is missing"});
  };
  const auto check_rows = [&](const RowBlock& group, Index held) {
    const auto within = [&](const RowBlock& rows, KeyRange keys) {
      return call.mask.keys_within(rows, keys, call.sizes.key_length);
    };
    const KeyRange gone{call.source.first_keys, held};
    if (within(group, gone).empty()) return;
    for (Index i = 0; i < group.count; ++i) {
      const RowBlock row = group.slice(i, 1);
      const KeyRange lost = within(row, gone);
      // A step at a time, so that what a mask drops between others is passed over.
      constexpr Index kStep = 512;
      for (Index first = lost.begin; first < lost.end; first += kStep) {
        const KeyRange keys = within(row, lost & KeyRange{first, first + kStep});
        if (keys.empty() || call.mask.cover(row, keys) == Cover::none) continue;
        for (Index key = keys.begin; key < keys.end; ++key) {
          if (sees(row, key)) raise(row, key, held);
        }
      }
    }
  };
  for (Index group = 0; group < call.num_groups() && call.rows() > 0; ++group) {
    const RowBlock rows = call.row_block(group, 0, call.rows());
    const Index held = first_held(rows.batch);
    if (held > call.source.first_keys) check_rows(rows, held);
  }
}

/// The same for a cache as it is.
template <class A>
void require_held_keys(const CallShapes& shapes, const AttentionCall<A>& call) {
  require_held_keys(shapes, call, [&](Index b) { return call.source.begin[b]; });
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

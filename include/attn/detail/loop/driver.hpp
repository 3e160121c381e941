// attn/detail/loop/driver.hpp - level 9: a checked call, cut into work items and run.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/forms/dim_lanes.hpp"
#include "attn/detail/forms/matrix_form.hpp"
#include "attn/detail/forms/row_lanes.hpp"
#include "attn/detail/loop/block.hpp"
#include "attn/detail/loop/engine.hpp"
#include "attn/detail/loop/splits.hpp"
#include "attn/detail/loop/walk.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Calls f(arena -> form): how a form of tile is made, of the kind that the call's plan says.
template <class A, class F>
void with_form(const AttentionCall<A>& call, const F& f) {
  if (!call.plan.rows_are_lanes) {
    f([&](Arena& arena) { return DimLanes<A>(call, arena); });
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (call.kernels.matrix_unit != nullptr) {
      f([&](Arena& arena) { return MatrixForm(call, arena); });
      return;
    }
  }
  f([&](Arena& arena) { return RowLanes<A>(call, arena); });
}

}  // namespace ATTN_BUILD
inline namespace ATTN_ENGINE {

template <class A>
ScratchBytes scratch_bytes(const AttentionCall<A>& call) {
  ScratchBytes bytes;
  Arena shared, form, merger;
  const PartialStates<A> partial(call, shared);
  with_form(call, [&](const auto& make_form) { make_form(form); });
  if (call.is_split()) SplitMerger<A>(call, merger);
  bytes.shared = shared.used();
  bytes.per_worker = (std::max)(form.used(), merger.used());
  return bytes;
}

template <class A>
void run_attention(const AttentionCall<A>& call, Executor* executor, Index workers,
                   const ScratchBytes& bytes, void* memory) {
  const Index blocks = call.num_blocks(), splits = call.num_splits(), groups = call.num_groups();
  Arena shared(memory);
  const PartialStates<A> partial(call, shared);
  const auto arena_of = [&](Index slot) {
    return Arena(static_cast<char*>(memory) + bytes.shared +
                 static_cast<std::size_t>(slot) * bytes.per_worker);
  };

  for_each_item(executor, workers, call.num_items(), [&](Index slot, Index item) {
    // The last blocks first: under a causal mask they have the most keys.
    const Index block = blocks - 1 - item / (groups * splits);
    const Index group = item / splits % groups, split = item % splits;
    with_form(call, [&](const auto& make_form) {
      Arena arena = arena_of(slot);
      auto form = make_form(arena);
      attend_block(call, form, call.block(group, block), call.split(split));
      for (const RowTile<A>& tile : form) {
        if (call.is_split()) {
          partial.save(form, tile, group, split);
        } else {
          finish_rows(call, form, tile);
        }
      }
    });
  });
  if (!call.is_split()) return;
  for_each_item(executor, workers, groups * blocks, [&](Index slot, Index item) {
    Arena arena = arena_of(slot);
    const Index group = item / blocks;
    SplitMerger<A>(call, arena).merge(partial, group, call.block(group, item % blocks));
  });
}

template <class A>
void walk_block(const AttentionCall<A>& call, const RowBlock& block, const AnyStep<A>& step,
                void* memory) {
  with_form(call, [&](const auto& make_form) {
    Arena arena(memory);
    auto form = make_form(arena);
    form.begin_block(block);
    walk_tiles(call, block, KeyRange{0, call.sizes.key_length}, call.rows_of(block, form.needs()),
               form, step);
  });
}

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

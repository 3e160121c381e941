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
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/loop/block.hpp"
#include "attn/detail/loop/engine.hpp"
#include "attn/detail/loop/splits.hpp"
#include "attn/detail/loop/walk.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// What is done with a form of tile, behind one pointer.
template <class A>
class FormUse {
 public:
  /// `use` outlives this.
  template <class Use>
  explicit FormUse(const Use& use)
      : use_(&use),
        run_([](const void* u, TileForm<A>& form) { (*static_cast<const Use*>(u))(form); }) {}

  void operator()(TileForm<A>& form) const { run_(use_, form); }

 private:
  const void* use_;
  void (*run_)(const void*, TileForm<A>&);
};

/// Makes a form in the arena's memory, or over a null arena to size it.
template <class Form, class A>
void use_form(const AttentionCall<A>& call, Arena& arena, const FormUse<A>& use) {
  Form form(call, arena);
  use(form);
}

}  // namespace ATTN_BUILD
inline namespace ATTN_ENGINE {

/// The matrix form.
struct MatrixTiles {
  void (*use)(const AttentionCall<float>& call, Arena& arena, const FormUse<float>& use);
};

template <class>
const MatrixProducts& matrix_products() {
  static constexpr MatrixTiles tiles = {use_form<MatrixForm<float>, float>};
  static constexpr MatrixProducts products = {find_matrix_unit<void>, &tiles};
  return products;
}

}  // namespace ATTN_ENGINE
inline namespace ATTN_BUILD {

/// Calls use(form) with a form of the kind that the call's plan says.
template <class A, class Use>
void with_form(const AttentionCall<A>& call, Arena& arena, const Use& use) {
  const FormUse<A> erased(use);
  if (!call.plan.rows_are_lanes) {
    use_form<DimLanes<A>>(call, arena, erased);
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (call.kernels.matrix_unit != nullptr) {
      call.source.matrix_products->tiles->use(call, arena, erased);
      return;
    }
  }
  use_form<RowLanes<A>>(call, arena, erased);
}

}  // namespace ATTN_BUILD
inline namespace ATTN_ENGINE {

template <class A>
ScratchBytes scratch_bytes(const AttentionCall<A>& call) {
  ScratchBytes bytes;
  Arena shared, form, merger;
  const PartialStates<A> partial(call, shared);
  with_form(call, form, [](const TileForm<A>&) {});
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
    Arena arena = arena_of(slot);
    with_form(call, arena, [&](TileForm<A>& form) {
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
  Arena arena(memory);
  with_form(call, arena, [&](TileForm<A>& form) {
    form.begin_block(block);
    walk_tiles(call, block, KeyRange{0, call.sizes.key_length}, call.rows_of(block, form.needs()),
               form, step);
  });
}

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

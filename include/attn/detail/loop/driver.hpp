// attn/detail/loop/driver.hpp - level 9: a checked call, cut into work items and run.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/forms/online_softmax.hpp"
#include "attn/detail/forms/scratch.hpp"
#include "attn/detail/forms/tile_stages.hpp"
#include "attn/detail/loop/split_states.hpp"
#include "attn/masks/concept.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// How the values of a tile are read. Almost always `plain`; the other two deal with infinities and
/// NaNs in V, which a weight of 0 does not stop: 0 * infinity is NaN.
enum class ValuePass { plain, finite_only, non_finite_only };

/// How a tile's keys or values are fetched: kernels of few rows read them as they are stored.
template <class A>
Fetch fetch_of(const AttentionCall<A>& call, ValuePass pass) {
  if (pass == ValuePass::finite_only) return Fetch::copied;
  if (pass == ValuePass::non_finite_only || call.plan.rows_are_lanes) return Fetch::converted;
  return Fetch::as_stored;
}

/// Attends a block of rows to `keys`, one tile after the other.
template <class A>
void attend_tiles(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowBlock& block,
                  KeyRange keys, ValuePass pass) {
  if (keys.empty()) return;  // it may begin behind all keys, in the last tile all the same
  const Index key_head = block.first_head / call.heads_per_key;
  const Index value_head = block.first_head / call.heads_per_value;
  const Index step = call.plan.key_tile;
  for (Index begin = keys.begin / step * step; begin < keys.end; begin += step) {
    const KeyRange fetched = keys & KeyRange{begin, begin + step};
    const auto fetch = [&](const TensorRef& tensor, Index head, ValuePass how, A* copy) {
      return fetch_rows(tensor, call.source.map, block.batch, head, fetched, keys.end,
                        fetch_of(call, how), copy, *call.kernels, *call.widen);
    };
    TileRows<A> key_rows;
    if (call.matrix_unit == nullptr) {  // the matrix form packs keys by itself
      key_rows = fetch(call.source.keys, key_head, ValuePass::plain, scratch.key_copy);
    }
    A* const value_copy = scratch.value_copy + (fetched.begin - begin) * call.value_dim;
    const TileRows<A> value_rows = fetch(call.source.values, value_head, pass, value_copy);
    if (call.lists_rows()) {
      key_rows.list(scratch.key_rows);
      value_rows.list(scratch.value_rows);
    }
    if (pass == ValuePass::finite_only) {
      zero_non_finite(value_copy, fetched.size() * call.value_dim);
    }
    if constexpr (std::is_same_v<A, float>) {
      if (call.matrix_unit != nullptr) {
        pack_keys(call, scratch, block.batch, key_head, fetched, begin);
        if (pass != ValuePass::non_finite_only) pack_values(call, scratch, fetched, begin);
      }
    }
    for_each_row_tile(call, scratch, block, [&](const RowTile<A>& tile) {
      const KeyRange seen = fetched & tile.keys;
      if (seen.empty()) return;
      const Cover cover = call.mask.cover(tile.rows, seen);
      if (cover == Cover::none) return;

      const Staircase stairs = find_staircase(call, tile, seen, cover);
      const ScoreTile<A> scores =
          compute_scores(call, scratch, tile, seen, stairs, key_rows, begin,
                         next_rows(call, scratch, block, tile, key_rows, seen));
      if (call.mask.modifies()) call.mask.modify(scores);
      if (cover == Cover::partial) call.mask.apply(scores);
      if (call.matrix_unit != nullptr && (call.mask.modifies() || cover == Cover::partial)) {
        call.matrix_unit->configure();  // a user's function may have used it for itself
      }

      if (pass == ValuePass::non_finite_only) {
        OnlineSoftmax<A> frozen = tile.state;  // m is final, and l is not summed twice
        frozen.sum = scratch.spare;
        update_weights(frozen, scratch, scores);
        if (call.has_dropout()) apply_dropout(call, scores);
        add_non_finite(tile.state, scores, value_rows);
        return;
      }
      if (call.extra.weights.data() != nullptr) keep_scores(call, scores);
      const bool rescale = update_weights(tile.state, scratch, scores);
      if (call.has_dropout()) apply_dropout(call, scores);
      add_values(call, scratch, tile.state, scores, stairs, value_rows, begin, rescale,
                 next_rows(call, scratch, block, tile, value_rows, seen));
    });
  }
}

/// Attends a block of rows to the keys of `split`; afterwards the states of its tiles hold the
/// sums.
template <class A>
void attend_block(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowBlock& block,
                  KeyRange split) {
  const KeyRange keys = call.key_range(block) & split;
  const auto reset = [&](RowTile<A> tile) {
    tile.state.reset(tile.rows.count, [&](Index row) {  // split keys get the sink when they merge
      return call.is_split() ? negative_infinity<A>() : call.sink(tile.rows.head(row));
    });
  };
  for_each_row_tile(call, scratch, block, [&](const RowTile<A>& tile) {
    load_queries(call, tile);
    reset(tile);
  });
  if (call.extra.weights.data() != nullptr) clear_scores(call, block, split);
  attend_tiles(call, scratch, block, keys, ValuePass::plain);

  bool finite = true;
  for_each_row_tile(call, scratch, block,
                    [&](const RowTile<A>& tile) { finite = finite && tile.state.is_finite(); });
  if (finite) return;
  // Some score or value was infinite or NaN. Scores have done what they should; values may have
  // reached rows that do not see their key. Again, with what is not finite added where it is seen.
  for_each_row_tile(call, scratch, block, reset);
  attend_tiles(call, scratch, block, keys, ValuePass::finite_only);
  attend_tiles(call, scratch, block, keys, ValuePass::non_finite_only);
}

inline namespace ATTN_ERRORS {

/// Runs a checked call.
template <class A>
void run_attention(const CallShapes& shapes, const AttentionCall<A>& call,
                   const AttentionOptions& options) {
  const Index blocks = call.num_blocks(), splits = call.num_splits();
  const Index groups = call.batch * call.num_groups;
  const Index items = groups * blocks * splits;
  if (items == 0) return;
  const Index workers = (std::min)(worker_count(options.executor), items);
  const std::size_t bytes = scratch_bytes(call, workers);
  const WorkMemory memory(shapes, options.workspace, bytes);
  Arena shared(memory.data());
  const PartialStates<A> partial(call, shared);
  const std::size_t per_worker = (bytes - shared.used()) / static_cast<std::size_t>(workers);
  const auto scratch_of = [&](Index slot) {
    Arena arena(static_cast<char*>(memory.data()) + shared.used() +
                static_cast<std::size_t>(slot) * per_worker);
    return Scratch<A>(call, arena);
  };
  const auto rows_of = [&](Index group, Index block) {
    const Index first = block * call.plan.row_block;
    return call.row_block(group / call.num_groups, group % call.num_groups, first,
                          (std::min)(call.plan.row_block, call.rows() - first));
  };

  for_each_item(options.executor, workers, items, [&](Index slot, Index item) {
    // The last blocks first: under a causal mask they have the most keys.
    const Index block = blocks - 1 - item / (groups * splits);
    const Index group = item / splits % groups, split = item % splits;
    const Scratch<A> scratch = scratch_of(slot);
    const RowBlock rows = rows_of(group, block);
    const MatrixUnitScope unit(call.matrix_unit);
    attend_block(call, scratch, rows, call.split(split));
    for_each_row_tile(call, scratch, rows, [&](const RowTile<A>& tile) {
      if (call.is_split()) {
        save_states(call, tile, partial, group, split);
      } else {
        finish_rows(call, scratch, tile);
      }
    });
  });
  if (!call.is_split()) return;
  for_each_item(options.executor, workers, groups * blocks, [&](Index slot, Index item) {
    const Index group = item / blocks;
    merge_splits(call, scratch_of(slot), partial, group, rows_of(group, item % blocks));
  });
}

/// Checks and runs attention of q over `source`. `past`: where a cache says its queries stand.
template <class A, class M>
void attend(const char* function, const TensorRef& q, const KeyValueSource& source,
            const PerBatch* past, const TensorRef& out, const M& mask,
            const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  CallShapes shapes(function);
  shapes.add_input("q", q);
  shapes.add_input("k", source.keys, source.key_shape);
  shapes.add_input("v", source.values, source.value_shape);
  check_outputs(shapes, q.shape, source.length, source.values.shape.dim, out, extra);
  check_inputs(shapes, q.shape, source.key_shape, source.value_shape);
  const AttentionCall<A> call =
      describe_call<A>(shapes, q, source, past, out, mask, options, extra);
  require_held_keys(shapes, call);
  run_attention(shapes, call, options);
}

/// The memory that one accumulation type takes.
template <class A>
std::size_t workspace_bytes_of(CallShapes& shapes, const TensorRef& q, const KeyValueSource& source,
                               const AttentionOptions& options) {
  // The mask and the other options do not change the size. They are left out: a lambda need not
  // accept both types, nor a number lie within the range of both.
  AttentionOptions sizing;
  sizing.instruction_set = options.instruction_set;
  sizing.allow_bf16_weights = options.allow_bf16_weights;
  const AttentionCall<A> call =
      describe_call<A>(shapes, q, source, nullptr, TensorRef(), Mask(), sizing, {});
  const Index items = call.batch * call.num_groups * call.num_blocks() * call.num_splits();
  if (items == 0) return 0;
  return scratch_bytes(call, (std::min)(worker_count(options.executor), items)) + Arena::kAlignment;
}

template <class M>
std::size_t workspace_bytes(const char* function, const TensorRef& q, const KeyValueSource& source,
                            const PerBatch* past, const M& mask, const AttentionOptions& options) {
  CallShapes shapes(function);
  shapes.add_input("q", q);
  shapes.add_input("k", source.keys, source.key_shape);
  shapes.add_input("v", source.values, source.value_shape);
  check_inputs(shapes, q.shape, source.key_shape, source.value_shape);
  check_options(shapes, options);
  resolve_offset(shapes, q, source, past, mask, options, (std::numeric_limits<double>::max)());
  return (std::max)(workspace_bytes_of<float>(shapes, q, source, options),
                    workspace_bytes_of<double>(shapes, q, source, options));
}

}  // namespace ATTN_ERRORS

}  // namespace detail
}  // namespace attn

// attn/detail/loop/splits.hpp - level 9: the partial results of a split key range, kept and merged.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/dim_lanes.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/softmax_state.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/loop/block.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The unmerged states of a split key range: [batch, group, split, row] of (out, max, sum).
template <class A>
class PartialStates {
 public:
  PartialStates(const AttentionCall<A>& call, Arena& arena)
      : splits_(call.num_splits()),
        rows_(call.rows()),
        out_stride_(round_up(call.sizes.value_dim, call.kernels.table->lanes)) {
    const Index states = call.is_split() ? call.num_groups() * splits_ * rows_ : 0;
    out_ = arena.take<A>(states * out_stride_);
    max_ = arena.take<A>(states);
    sum_ = arena.take<A>(states);
  }

  /// Keeps the states of one split; `group` counts the groups of all batches.
  void save(const TileForm<A>& form, const RowTile<A>& tile, Index group, Index split) const {
    const Index first = place(group, split, tile.rows.first_row);
    std::copy_n(tile.state.max, tile.rows.count, max_ + first);
    std::copy_n(tile.state.sum, tile.rows.count, sum_ + first);
    form.copy_rows(tile, out_ + first * out_stride_, out_stride_);
  }
  /// What split `split` found for a row.
  void load(Index group, Index split, Index row, A& max, A& sum, const A*& out) const {
    const Index i = place(group, split, row);
    max = max_[i];
    sum = sum_[i];
    out = out_ + i * out_stride_;
  }

 private:
  Index place(Index group, Index split, Index row) const {
    return (group * splits_ + split) * rows_ + row;
  }

  Index splits_, rows_, out_stride_;
  A *out_, *max_, *sum_;
};

/// Merges the splits of a block of rows.
template <class A>
class SplitMerger {
 public:
  SplitMerger(const AttentionCall<A>& call, Arena& arena)
      : call_(call), merged_(call, arena, (std::min)(call.plan.row_block, call.rows())) {
    const Index states = call.num_splits() + 1;
    max_ = arena.take<A>(states);
    sum_ = arena.take<A>(states);
    parts_ = arena.take<const A*>(states);
  }

  /// Merges the sink and the splits, in key order, and writes the outputs.
  void merge(const PartialStates<A>& partial, Index group, const RowBlock& block) {
    merged_.begin_merging(block);
    const RowTile<A>& tile = *merged_.begin();
    const Index splits = call_.num_splits();
    for (Index row = 0; row < block.count; ++row) {
      max_[0] = call_.sink(block.head(row));
      sum_[0] = is_negative_infinity(max_[0]) ? A(0) : A(1);
      parts_[0] = nullptr;  // a sink has no value
      for (Index split = 0; split < splits; ++split) {
        partial.load(group, split, block.first_row + row, max_[split + 1], sum_[split + 1],
                     parts_[split + 1]);
      }
      merge_states(*call_.kernels.table, splits + 1, max_, sum_, parts_, call_.sizes.value_dim,
                   tile.state.max[row], tile.state.sum[row], merged_.line(tile, row));
    }
    finish_rows(call_, merged_, tile);
  }

 private:
  const AttentionCall<A>& call_;
  DimLanes<A> merged_;
  A *max_, *sum_;
  const A** parts_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/loop/split_states.hpp - level 9: the partial results of a split key range, kept and
// merged.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/forms/online_softmax.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/scratch.hpp"
#include "attn/detail/forms/tile_stages.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Copies the states of a split of the keys to where they are merged from.
template <class A>
void save_states(const AttentionCall<A>& call, const RowTile<A>& tile,
                 const PartialStates<A>& partial, Index group, Index split) {
  const OnlineSoftmax<A>& state = tile.state;
  for (Index row = 0; row < tile.rows.count; ++row) {
    const Index i = PartialStates<A>::place(call, group, split, tile.rows.first_row + row);
    partial.max[i] = state.max[row];
    partial.sum[i] = state.sum[row];
    A* const out = partial.out + i * partial.out_stride;
    for (Index d = 0; d < state.dim; ++d) out[d] = state.value(row, d);
  }
}

/// Merges the sink and the splits of a block of rows, in key order, and writes their outputs.
template <class A>
void merge_splits(const AttentionCall<A>& call, const Scratch<A>& scratch,
                  const PartialStates<A>& partial, Index group, const RowBlock& block) {
  const Index states = call.num_splits() + 1;
  const RowTile<A> tile = merged_tile(call, scratch, block);
  A *const max = scratch.spare, *const sum = max + states;
  for (Index row = 0; row < block.count; ++row) {
    max[0] = call.sink(block.head(row));
    sum[0] = is_negative_infinity(max[0]) ? A(0) : A(1);
    scratch.parts[0] = nullptr;  // a sink has no value
    for (Index split = 0; split + 1 < states; ++split) {
      const Index i = PartialStates<A>::place(call, group, split, block.first_row + row);
      max[split + 1] = partial.max[i];
      sum[split + 1] = partial.sum[i];
      scratch.parts[split + 1] = partial.out + i * partial.out_stride;
    }
    merge_states(*call.kernels, states, max, sum, scratch.parts, call.value_dim,
                 tile.state.max[row], tile.state.sum[row],
                 tile.state.out + row * tile.state.out_stride);
  }
  finish_rows(call, scratch, tile);
}

}  // namespace detail
}  // namespace attn

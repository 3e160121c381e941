// attn/detail/loop/block.hpp - level 9: the forward pass of one block of rows.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/loop/engine.hpp"
#include "attn/detail/loop/walk.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/steps/keep_scores.hpp"
#include "attn/detail/steps/non_finite.hpp"
#include "attn/detail/steps/softmax.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Where some score or value was infinite or NaN. Scores have done what they should; values may
/// have reached rows that do not see their key. Again, with what is not finite added where it is
/// seen.
template <class A>
ATTN_COLD void attend_again(const AttentionCall<A>& call, TileForm<A>& form, const RowBlock& block,
                            KeyRange split, const KeyValueRows<A>& rows) {
  form.reset(!call.is_split());
  const SoftmaxStep<A> softmax(call, form);
  walk_tiles(call, block, split, rows.with_values(Fetch::finite), form, AnyStep<A>(softmax));
  const NonFiniteStep<A> non_finite(call, form);
  walk_tiles(call, block, split, rows.with_values(Fetch::converted), form, AnyStep<A>(non_finite));
}

/// Attends a block of rows to the keys of `split`; afterwards the states of its tiles hold the
/// sums.
template <class A>
void attend_block(const AttentionCall<A>& call, TileForm<A>& form, const RowBlock& block,
                  KeyRange split) {
  const bool has_sinks = !call.is_split();  // split keys get the sink when they merge
  const auto walk = [&](const KeyValueRows<A>& rows, const auto& step) {
    walk_tiles(call, block, split, rows, form, AnyStep<A>(step));
  };
  form.begin_block(block);
  form.reset(has_sinks);
  const KeyValueRows<A> rows = call.rows_of(block, form.needs());
  const SoftmaxStep<A> softmax(call, form);
  if (call.outputs.has_weights()) {
    clear_scores(call, block, split);
    walk(rows, KeepScoresStep<A>(call, softmax));
  } else {
    walk(rows, softmax);
  }
  if (!form.is_finite()) attend_again(call, form, block, split, rows);
}

/// Writes the outputs of a tile whose state has seen all keys.
template <class A>
void finish_rows(const AttentionCall<A>& call, const TileForm<A>& form, const RowTile<A>& tile) {
  const CallOutputs<A>& outputs = call.outputs;
  const RowBlock& rows = tile.rows;
  form.normalize(tile);
  form.store(tile);
  if (outputs.has_log_sum_exp()) {
    for (Index row = 0; row < rows.count; ++row) {
      outputs.extra.log_sum_exp(rows.batch, rows.head(row), rows.query(row), 0) =
          tile.state.log_sum_exp(row);
    }
  }
  if (!outputs.has_weights()) return;
  for (Index row = 0; row < rows.count; ++row) {
    finish_weights(call, tile.state, row, rows.slice(row, 1), form.row_line(),
                   form.row_line_size());
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

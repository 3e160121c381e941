// attn/detail/steps/keep_scores.hpp - level 8: the weights that the caller asked for. Until a row's
// denominator is known, their memory holds its masked scores.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/softmax_state.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/steps/softmax.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Writes the scores or weights of a tile to their places in a tensor [B, Hq, Sq, Sk].
template <class A>
void store_scores(const ScoreTile<A>& scores, const Tensor4<A>& to, const KernelTable<A>& kernels) {
  const Stride4& stride = to.stride();
  const RowBlock& rows = scores.rows;
  rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    A* const first = &to(rows.batch, head, query, scores.keys.begin);
    const Index keys = scores.keys.size();
    if (scores.row_stride == 1 && stride.dim == 1) {
      kernels.transpose(&scores(begin, scores.keys.begin), scores.key_stride, keys, end - begin,
                        first, stride.length);
      return;
    }
    for (Index row = begin; row < end; ++row) {
      A* const line = first + (row - begin) * stride.length;
      for (Index j = 0; j < keys; ++j) line[j * stride.dim] = scores(row, scores.keys.begin + j);
    }
  });
}
template <class A>
void keep_scores(const AttentionCall<A>& call, const ScoreTile<A>& scores) {
  store_scores(scores, call.outputs.extra.weights, *call.kernels.table);
}

/// Marks the scores of some rows and keys as those of absent keys: no tile may come to them.
template <class A>
void clear_scores(const AttentionCall<A>& call, const RowBlock& rows, KeyRange keys) {
  const Index stride = call.outputs.extra.weights.stride().dim;
  rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    for (Index i = query; i < query + end - begin; ++i) {
      A* const kept = &call.outputs.extra.weights(rows.batch, head, i, keys.begin);
      if (stride == 1) {
        fill_absent(kept, keys.size());
        continue;
      }
      for (Index j = 0; j < keys.size(); ++j) kept[j * stride] = negative_infinity<A>();
    }
  });
}

/// Turns the kept scores of one row into its weights: exp(s - m) / l, then dropout. `line`: room
/// for `size` scores.
template <class A>
void finish_weights(const AttentionCall<A>& call, const SoftmaxState<A>& state, Index state_row,
                    const RowBlock& row, A* line, Index size) {
  const Index stride = call.outputs.extra.weights.stride().dim;
  A* const kept = &call.outputs.extra.weights(row.batch, row.head(0), row.query(0), 0);
  for (Index first = 0; first < call.sizes.key_length; first += size) {
    const KeyRange keys{first, (std::min)(call.sizes.key_length, first + size)};
    const Index padded = round_up(keys.size(), call.kernels.table->lanes);
    if (stride == 1) {
      std::copy_n(kept + first, keys.size(), line);
    } else {
      for (Index i = 0; i < keys.size(); ++i) line[i] = kept[(first + i) * stride];
    }
    fill_absent(line + keys.size(), padded - keys.size());
    call.kernels.table->dim_weights(line, padded, state.max[state_row], state.divisor(state_row));
    const ScoreTile<A> tile{row, keys, line, padded, 1, call.kernels.table->set};
    if (call.dropout.applies()) apply_dropout(call.dropout, tile);
    keep_scores(call, tile);
  }
}

/// Keeps the scores of a tile before the next step turns them into weights.
template <class A>
class KeepScoresStep {
 public:
  KeepScoresStep(const AttentionCall<A>& call, const SoftmaxStep<A>& next)
      : call_(call), next_(next) {}

  void operator()(const RowTile<A>& tile, const ScoreTile<A>& scores,
                  const FetchedRows<A>& fetched) const {
    keep_scores(call_, scores);
    next_(tile, scores, fetched);
  }

 private:
  const AttentionCall<A>& call_;
  SoftmaxStep<A> next_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

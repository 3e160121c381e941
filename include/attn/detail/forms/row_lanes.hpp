// attn/detail/forms/row_lanes.hpp - level 7: the row-lane form: one vector lane a row, keys and
// values read as scalars from wherever their rows lie. For many rows, as in prefill.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/lane_tiles.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class A>
class RowLanes final : public LaneTiles<A> {
  using Base = LaneTiles<A>;
  using Base::call_;
  using Base::kernels;
  using Base::lanes_;
  using Base::stride_;

 public:
  using Tile = RowTile<A>;

  RowLanes(const AttentionCall<A>& call, Arena& arena)
      : Base(call, arena, call.kernels.table->lanes, call.sizes.key_dim, call.sizes.value_dim,
             call.kernels.table->lanes) {
    const Index keys = Base::tile_keys_;
    const bool copies_keys = !call.source.keys.template has_plain_rows<A>();
    key_copy_ = arena.take<A>(copies_keys ? keys * call.sizes.key_dim : 0);
    value_copy_ = arena.take<A>(keys * call.sizes.value_dim);
    key_rows_ = arena.take<const void*>(keys);
    value_rows_ = arena.take<const void*>(keys);
    ahead_rows_ = arena.take<const void*>(keys);
  }

  RowNeeds<A> needs() const final {
    return {Fetch::converted, Fetch::converted, key_copy_, value_copy_};
  }
  void begin_block(const RowBlock& block) final { Base::load(block); }
  void take(const FetchedRows<A>& fetched) final {
    fetched_ = &fetched;
    fetched.key_rows.list(key_rows_);
    fetched.value_rows.list(value_rows_);
  }

  /// scale * (q . k), softcapped: the scores of a tile before biases and masks. Where a vector of
  /// rows sees nothing the scores are -infinity.
  ScoreTile<A> scores(const Tile& tile, KeyRange keys, Cover cover) final {
    stairs_ = find_staircase(call_, tile, keys, cover, lanes_);
    compute_scores(tile, keys, stairs_.common, 0, tile.padded_rows,
                   next_rows(tile, fetched_->key_rows, keys));
    for (Index v = 0; v < stairs_.vectors; ++v) {
      compute_scores(tile, keys, stairs_.before(v), v * lanes_, lanes_, {});
      compute_scores(tile, keys, stairs_.behind(v), v * lanes_, lanes_, {});
    }
    Base::leave_out(stairs_, keys, Base::scores_);
    return Base::finish_scores(tile, keys, Base::scores_);
  }

  /// o = o * factors (if `rescale`) + weights * values, in ascending order of keys for every row.
  void accumulate(const Tile& tile, const ScoreTile<A>& weights, bool rescale) final {
    if (stairs_.vectors == 0) {
      add_values(tile, weights, weights.keys, 0, tile.padded_rows, rescale,
                 next_rows(tile, fetched_->value_rows, weights.keys));
      return;
    }
    bool has_before = false;
    for (Index v = 0; v < stairs_.vectors; ++v) has_before |= !stairs_.before(v).empty();
    // Rescaling comes before the first key of any vector.
    if (has_before) {
      for (Index v = 0; v < stairs_.vectors; ++v) {
        add_values(tile, weights, stairs_.before(v), v * lanes_, lanes_, rescale, {});
      }
      rescale = false;
    }
    if (rescale || !stairs_.common.empty()) {
      add_values(tile, weights, stairs_.common, 0, tile.padded_rows, rescale, {});
    }
    for (Index v = 0; v < stairs_.vectors; ++v) {
      if (stairs_.behind(v).empty()) continue;
      add_values(tile, weights, stairs_.behind(v), v * lanes_, lanes_, false, {});
    }
  }

 private:
  /// scale * (q . k) for the keys `part` of `keys` and some rows.
  void compute_scores(const Tile& tile, KeyRange keys, KeyRange part, Index first_row, Index rows,
                      const Prefetch& ahead) const {
    if (part.empty()) return;
    kernels().row_scores(
        key_rows_ + (part.begin - fetched_->keys.begin), part.size(), call_.sizes.key_dim,
        tile.queries + first_row, stride_, rows, call_.score.scale,
        Base::scores_ + (part.begin - keys.begin) * stride_ + first_row, stride_, ahead);
  }
  /// o = o * factors (if `rescale`) + weights * values for the keys `part` and some rows.
  void add_values(const Tile& tile, const ScoreTile<A>& weights, KeyRange part, Index first_row,
                  Index rows, bool rescale, const Prefetch& ahead) const {
    kernels().row_accumulate(
        value_rows_ + (part.begin - fetched_->keys.begin), part.size(), call_.sizes.value_dim,
        weights.scores + (part.begin - weights.keys.begin) * stride_ + first_row, stride_, rows,
        rescale ? tile.state.factors + first_row : nullptr, tile.out + first_row, stride_, ahead);
  }
  /// What the last tile of the block prefetches while it works on `keys`: the rows that come after
  /// them. Scores and values alternate, which hides the order of either from the CPU's own
  /// prefetching.
  Prefetch next_rows(const Tile& tile, const TileRows<A>& rows, KeyRange keys) const {
    if (&tile + 1 != Base::end() || keys.end >= rows.end) return {};
    TileRows<A> next = rows;
    next.copy = nullptr;
    next.keys = {keys.end, (std::min)(rows.end, keys.end + keys.size())};
    next.list(ahead_rows_);
    std::fill(ahead_rows_ + next.keys.size(), ahead_rows_ + keys.size(), nullptr);
    return {ahead_rows_, rows.tensor->shape.dim * rows.tensor->element_size(), 0};
  }

  A *key_copy_, *value_copy_;
  const void **key_rows_, **value_rows_;
  const void** ahead_rows_;
  const FetchedRows<A>* fetched_ = nullptr;
  Staircase stairs_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

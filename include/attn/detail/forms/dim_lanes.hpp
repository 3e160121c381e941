// attn/detail/forms/dim_lanes.hpp - level 7: the dim-lane form: one vector lane a dim (scores,
// values) or a key (softmax). For few rows, as in decoding, where most row lanes would idle.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// One tile of all rows. Queries and outputs are a line a row, padded to whole vectors; so are
/// scores, whose lines begin at the key tile's first key.
template <class A>
class DimLanes final : public TileForm<A> {
  using Base = TileForm<A>;
  using Base::call_;
  using Base::kernels;
  using Base::scores_;
  using Base::tile_keys_;

 public:
  using Tile = RowTile<A>;

  DimLanes(const AttentionCall<A>& call, Arena& arena)
      : DimLanes(call, arena, call.rows(),
                 round_up(call.sizes.key_dim, call.kernels.table->lanes)) {
    const Index keys = tile_keys_;
    scores_ = arena.take<A>(keys * call.rows());
    key_copy_ = arena.take<A>(
        call.source.keys.template has_plain_rows<A>() ? 0 : keys * call.sizes.key_dim);
    value_copy_ = arena.take<A>(keys * call.sizes.value_dim);
  }

  /// Only the outputs of `rows` rows: where the states of splits merge.
  DimLanes(const AttentionCall<A>& call, Arena& arena, Index rows)
      : DimLanes(call, arena, rows, 0) {
    scores_ = arena.take<A>(tile_keys_);
  }

  RowNeeds<A> needs() const final {
    return {Fetch::as_stored, Fetch::as_stored, key_copy_, value_copy_};
  }
  void begin_block(const RowBlock& block) final {
    set_rows(block);
    for_each_row_run(
        call_.q, block, [&](Index begin, Index end, const TensorRef& lines, Index offset) {
          for (Index row = begin; row < end; ++row) {
            A* const line = tile_.queries + row * query_stride_;
            load_row(lines, offset + (row - begin) * lines.stride.length, line, kernels().set);
            std::fill(line + call_.sizes.key_dim, line + query_stride_, A(0));
          }
        });
  }
  /// The same where states are merged, which needs no queries.
  void begin_merging(const RowBlock& block) {
    set_rows(block);
    Base::reset(false);
  }
  void take(const FetchedRows<A>& fetched) final { fetched_ = &fetched; }

  /// scale * (q . k), softcapped: the scores of a tile before biases and masks. Lines are padded
  /// with -infinity.
  ScoreTile<A> scores(const Tile& tile, KeyRange keys, Cover) final {
    const Index rows = tile.rows.count;
    const Index before = keys.begin - fetched_->tile_begin;
    const Index end = keys.end - fetched_->tile_begin;
    padded_ = round_up(end, kernels().lanes);
    const auto pad = [&] {
      for (Index row = 0; row < rows; ++row) {
        A* const line = scores_ + row * tile_keys_;
        fill_absent(line, before);
        fill_absent(line + end, padded_ - end);
      }
    };
    pad();
    const TileRows<A>& key_rows = fetched_->key_rows;
    key_rows.for_each_run(keys, rows, [&](const RowRun& run, Index key) {
      key_rows.few_rows->scores(run, call_.sizes.key_dim, tile.queries, query_stride_, rows,
                                call_.score.scale, scores_ + (key - fetched_->tile_begin),
                                tile_keys_);
    });
    if (call_.score.softcap > 0) {
      kernels().softcap(scores_, rows, padded_, tile_keys_, call_.score.softcap);
      pad();
    }
    return {tile.rows, keys, scores_ + before, tile_keys_, 1, kernels().set};
  }

  /// o = o * factors (if `rescale`) + weights * values, in ascending order of keys for every row.
  void accumulate(const Tile& tile, const ScoreTile<A>& weights, bool rescale) final {
    const TileRows<A>& value_rows = fetched_->value_rows;
    const Index first_key = weights.keys.begin, rows = tile.rows.count;
    value_rows.for_each_run(weights.keys, rows, [&](const RowRun& run, Index key) {
      value_rows.few_rows->accumulate(
          run, call_.sizes.value_dim, weights.scores + (key - first_key), tile_keys_, rows,
          rescale && key == first_key ? tile.state.factors : nullptr, tile.out, out_stride_);
    });
  }

  /// A row's o.
  A* line(const Tile& tile, Index row) const { return tile.out + row * out_stride_; }
  bool is_finite() const final {
    return kernels().all_finite(tile_.out, tile_.rows.count, out_stride_, out_stride_);
  }
  /// o /= l. Rows without a key keep o = 0.
  void normalize(const Tile& tile) const final {
    tile.state.set_divisors(tile.rows.count);
    kernels().dim_divide(tile.out, tile.rows.count, out_stride_, out_stride_, tile.state.factors);
  }
  void copy_rows(const Tile& tile, A* lines, Index line_stride) const final {
    for (Index row = 0; row < tile.rows.count; ++row) {
      std::copy_n(line(tile, row), call_.sizes.value_dim, lines + row * line_stride);
    }
  }
  void store(const Tile& tile) const final {
    for_each_row_run(call_.outputs.out, tile.rows,
                     [&](Index begin, Index end, const TensorRef& lines, Index offset) {
                       for (Index row = begin; row < end; ++row) {
                         store_row(lines, offset + (row - begin) * lines.stride.length,
                                   line(tile, row), 1);
                       }
                     });
  }

 private:
  using Base::unread_sums_;

  DimLanes(const AttentionCall<A>& call, Arena& arena, Index rows, Index query_stride)
      : Base(call, call.kernels.table->lanes,
             {round_up(call.sizes.value_dim, call.kernels.table->lanes), 1}),
        query_stride_(query_stride),
        out_stride_(Base::out_strides_.row) {
    tile_.queries = arena.take<A>(rows * query_stride);
    tile_.out = arena.take<A>(rows * out_stride_);
    tile_.state = {arena.take<A>(rows), arena.take<A>(rows), arena.take<A>(rows)};
    unread_sums_ = arena.take<A>(rows);
    Base::tiles_ = &tile_;
    Base::num_tiles_ = 1;
  }
  void set_rows(const RowBlock& block) {
    tile_.rows = block;
    tile_.padded_rows = block.count;
    tile_.out_size = block.count * out_stride_;
  }
  bool softmax(const Tile& tile, const ScoreTile<A>&, A* sums) const final {
    return kernels().dim_softmax(scores_, padded_, tile.rows.count, tile_keys_, tile.state.max,
                                 sums, tile.state.factors);
  }

  Index query_stride_, out_stride_;
  Index padded_ = 0;  ///< of a line of tile_keys_ scores, those of the present tile
  Tile tile_{};
  A *key_copy_ = nullptr, *value_copy_ = nullptr;
  const FetchedRows<A>* fetched_ = nullptr;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

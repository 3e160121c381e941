// attn/detail/forms/lane_tiles.hpp - level 7: tiles with one vector lane a row, for many rows: what
// the row-lane and the matrix form share. Queries, scores and outputs are lines of rows.
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
#include "attn/detail/rows/transfer.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class A>
class LaneTiles : public TileForm<A> {
  using Base = TileForm<A>;

 public:
  using Tile = RowTile<A>;

  bool is_finite() const final {
    return std::all_of(Base::begin(), Base::end(), [&](const Tile& tile) {
      return kernels().all_finite(tile.out, call_.sizes.value_dim, tile.padded_rows, stride_);
    });
  }
  void normalize(const Tile& tile) const final {
    tile.state.set_divisors(tile.padded_rows);
    kernels().row_divide(tile.out, call_.sizes.value_dim, tile.padded_rows, stride_,
                         tile.state.factors);
  }
  void copy_rows(const Tile& tile, A* lines, Index line_stride) const final {
    kernels().transpose(tile.out, stride_, call_.sizes.value_dim, tile.rows.count, lines,
                        line_stride);
  }
  void store(const Tile& tile) const final {
    for_each_row_run(call_.outputs.out, tile.rows,
                     [&](Index begin, Index end, const TensorRef& lines, Index offset) {
                       store_columns(lines, offset, end - begin, tile.out + begin, stride_,
                                     kernels());
                     });
  }

 protected:
  /// `lanes` rows are a vector. `query_lines`: lines that the queries of a tile take, one or more a
  /// dim; `out_lines`, likewise; `key_step`: keys that are taken together.
  LaneTiles(const AttentionCall<A>& call, Arena& arena, Index lanes, Index query_lines,
            Index out_lines, Index key_step)
      : Base(call, key_step, {1, call.plan.row_tile}),
        lanes_(lanes),
        stride_(call.plan.row_tile),
        query_lines_(query_lines),
        out_lines_(out_lines) {
    const Index rows = (std::min)(call.plan.row_block, round_up(call.rows(), stride_));
    queries_ = arena.take<A>(rows * query_lines);
    out_ = arena.take<A>(rows * out_lines);
    max_ = arena.take<A>(rows);
    sum_ = arena.take<A>(rows);
    factors_ = arena.take<A>(rows);
    unread_sums_ = arena.take<A>(stride_);
    tiles_ = arena.take<Tile>(rows / stride_);
    scores_ = arena.take<A>(tile_keys_ * stride_);
  }
  ~LaneTiles() = default;

  /// Builds the tiles of a block and loads its queries; the padding is 0.
  void load(const RowBlock& block) {
    num_tiles_ = 0;
    for (Index first = 0; first < block.count; first += stride_) {
      Tile& tile = tiles_[num_tiles_++];
      tile.rows = block.slice(first, (std::min)(stride_, block.count - first));
      tile.padded_rows = round_up(tile.rows.count, lanes_);
      tile.queries = queries_ + first * query_lines_;
      tile.out = out_ + first * out_lines_;
      tile.out_size = out_lines_ * stride_;
      tile.state = {max_ + first, sum_ + first, factors_ + first};
      load_queries(tile);
    }
  }

  /// Marks the scores of some keys and rows as those of absent keys. `scores`: of key keys.begin.
  void fill_keys_absent(A* scores, KeyRange keys, Index rows) const {
    for (Index j = 0; j < keys.size(); ++j) fill_absent(scores + j * stride_, rows);
  }
  /// Of keys that a vector of rows does not see, the scores are those of absent keys.
  void leave_out(const Staircase& stairs, KeyRange keys, A* scores) const {
    for (Index v = 0; v < stairs.vectors; ++v) {
      const KeyRange seen = stairs.seen[v];
      A* const first = scores + v * lanes_;
      fill_keys_absent(first, {keys.begin, seen.begin}, lanes_);
      fill_keys_absent(first + (seen.end - keys.begin) * stride_, {seen.end, keys.end}, lanes_);
    }
  }
  /// The scores of a tile, softcapped: `scores` are those of its first key.
  ScoreTile<A> finish_scores(const Tile& tile, KeyRange keys, A* scores) const {
    if (call_.score.softcap > 0) {
      kernels().softcap(scores, keys.size(), tile.padded_rows, stride_, call_.score.softcap);
    }
    return {tile.rows, keys, scores, 1, stride_, kernels().set};
  }

  using Base::call_;
  using Base::kernels;
  using Base::scores_;
  using Base::tile_keys_;
  Index lanes_;
  Index stride_;  ///< elements between lines: rows of a tile
  Index query_lines_, out_lines_;
  A *queries_, *out_, *max_, *sum_, *factors_;

 private:
  void load_queries(const Tile& tile) const {
    for_each_row_run(
        call_.q, tile.rows, [&](Index begin, Index end, const TensorRef& lines, Index offset) {
          load_columns(lines, offset, end - begin, tile.queries + begin, stride_, kernels());
        });
    if (tile.rows.count == tile.padded_rows) return;
    for (Index d = 0; d < call_.sizes.key_dim; ++d) {
      A* const line = tile.queries + d * stride_;
      std::fill(line + tile.rows.count, line + tile.padded_rows, A(0));
    }
  }
  using Base::num_tiles_;
  using Base::tiles_;
  using Base::unread_sums_;

  bool softmax(const Tile& tile, const ScoreTile<A>& scores, A* sums) const final {
    return kernels().row_softmax(scores.scores, scores.keys.size(), tile.padded_rows, stride_,
                                 tile.state.max, sums, tile.state.factors);
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

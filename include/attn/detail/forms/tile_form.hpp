// attn/detail/forms/tile_form.hpp - level 7: what every form of tile does. The loop, its steps and
// what writes the outputs are compiled once for all forms.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <cstring>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// How a block of rows is cut into tiles, and how a tile is computed.
template <class A>
class TileForm {
 public:
  using Tile = RowTile<A>;

  TileForm(const TileForm&) = delete;
  TileForm& operator=(const TileForm&) = delete;

  /// How keys and values are fetched.
  virtual RowNeeds<A> needs() const = 0;
  /// Builds the tiles of a block and loads its queries.
  virtual void begin_block(const RowBlock& block) = 0;
  /// The keys and values that the tiles work on next; they outlive that.
  virtual void take(const FetchedRows<A>& fetched) = 0;
  /// scale * (q . k), softcapped: the scores of a tile before biases and masks. Rows may share
  /// what none of them sees: those scores are -infinity.
  virtual ScoreTile<A> scores(const Tile& tile, KeyRange keys, Cover cover) = 0;
  /// o = o * factors (if `rescale`) + weights * values, in ascending order of keys for every row.
  virtual void accumulate(const Tile& tile, const ScoreTile<A>& weights, bool rescale) = 0;
  /// Whether the outputs are.
  virtual bool is_finite() const = 0;
  /// o /= l. Rows without a key keep o = 0.
  virtual void normalize(const Tile& tile) const = 0;
  /// Copies each row's o to a line of its own.
  virtual void copy_rows(const Tile& tile, A* lines, Index line_stride) const = 0;
  /// Writes the rows to out.
  virtual void store(const Tile& tile) const = 0;

  /// The tiles of the block.
  const Tile* begin() const { return tiles_; }
  const Tile* end() const { return tiles_ + num_tiles_; }

  /// No key seen: o = 0, m and l of each row as of its sink, or (not `has_sinks`) as of none.
  void reset(bool has_sinks) const {
    for (const Tile& tile : *this) {
      tile.state.reset(tile.padded_rows, tile.rows.count, [&](Index row) {
        return has_sinks ? call_.sink(tile.rows.head(row)) : negative_infinity<A>();
      });
      // All bits 0 is 0.
      std::memset(tile.out, 0, static_cast<std::size_t>(tile.out_size) * sizeof(A));
    }
  }
  /// Turns masked scores into weights and adds them to l. Returns whether o must be rescaled by the
  /// state's factors before the values are added.
  bool softmax(const Tile& tile, const ScoreTile<A>& scores) const {
    return softmax(tile, scores, tile.state.sum);
  }
  /// The same weights again, once m is final; l stays as it is.
  void softmax_again(const Tile& tile, const ScoreTile<A>& scores) const {
    softmax(tile, scores, unread_sums_);
  }
  /// Element d of a row's o.
  A& value(const Tile& tile, Index row, Index d) const {
    return tile.out[row * out_strides_.row + d * out_strides_.dim];
  }
  /// Scratch for a line of the scores of one row, of at most row_line_size() keys.
  A* row_line() const { return scores_; }
  Index row_line_size() const { return tile_keys_; }

 protected:
  /// Elements between the outputs of neighbouring rows, and dims.
  struct OutStrides {
    Index row, dim;
  };

  /// `key_step`: keys that are taken together.
  TileForm(const AttentionCall<A>& call, Index key_step, OutStrides out_strides)
      : call_(call), out_strides_(out_strides), tile_keys_(call.tile_keys(key_step)) {}
  ~TileForm() = default;

  const KernelTable<A>& kernels() const { return *call_.kernels.table; }

  const AttentionCall<A>& call_;
  OutStrides out_strides_;
  Index tile_keys_;  ///< the most keys of a tile
  // Of these the form has memory.
  A* scores_ = nullptr;
  A* unread_sums_ = nullptr;
  Tile* tiles_ = nullptr;
  Index num_tiles_ = 0;

 private:
  /// `sums`: what is counted as l.
  virtual bool softmax(const Tile& tile, const ScoreTile<A>& scores, A* sums) const = 0;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/forms/matrix_form.hpp - level 7: the matrix form, the row-lane form of a bfloat16
// call whose products are the matrix unit's:
//
//   scores^T += K Q^T      K as its rows lie, Q transposed in pairs of dims
//   out^T    += V^T P^T    V transposed, the weights P in pairs of keys, rounded to bfloat16
//
// Scores, weights and outputs lie as in the row-lane form, so masks, softmax and dropout are those
// of float. Keys are taken in chunks at fixed places: a row's sums do not depend on how many of
// them its neighbours see, since a chunk without a key adds exact zeros.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/lane_tiles.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// A is float: a template, so that only a program with such calls compiles it.
template <class A>
class MatrixForm final : public LaneTiles<A> {
  static_assert(std::is_same_v<A, float>);
  using Base = LaneTiles<A>;
  using Base::call_;
  using Base::kernels;
  using Base::lanes_;
  using Base::out_lines_;
  using Base::scores_;
  using Base::stride_;
  using Base::tile_keys_;
  static constexpr Index kPairs = MatrixUnit::kPairs, kChunk = 2 * MatrixUnit::kPairs;

 public:
  using Tile = RowTile<A>;

  MatrixForm(const AttentionCall<A>& call, Arena& arena)
      : Base(call, arena, MatrixUnit::kColumns, 2 * key_pairs(call), out_lines(call), kChunk),
        unit_(*call.kernels.matrix_unit),
        widen_(widening(call.kernels.table->set)),
        scope_(arena.is_real() ? call.kernels.matrix_unit : nullptr),
        // 16 pairs more than the tile's, so that the lines of 16 dims do not compete for a few sets
        // of the cache.
        value_stride_(tile_keys_ / 2 + kPairs) {
    value_copy_ = arena.take<float>(tile_keys_ * call.sizes.value_dim);
    packed_keys_ = arena.take<float>(tile_keys_ * key_pairs(call));
    packed_values_ = arena.take<float>(out_lines_ * value_stride_);
    value_pairs_ = arena.take<float>(kPairs * call.sizes.value_dim);
  }

  /// Keys are packed from where they lie.
  RowNeeds<A> needs() const final {
    return {Fetch::in_place, Fetch::converted, nullptr, value_copy_};
  }
  void begin_block(const RowBlock& block) final {
    Base::load(block);
    for (const Tile& tile : *this) pack_queries(tile);
  }
  void take(const FetchedRows<A>& fetched) final {
    tile_begin_ = fetched.tile_begin;
    pack_keys(fetched.key_rows);
    pack_values(fetched);
  }

  /// scale * (q . k), softcapped: the scores of a tile before biases and masks. Where the rows see
  /// nothing the scores are -infinity. Keys stand at their places in the key tile.
  ScoreTile<A> scores(const Tile& tile, KeyRange keys, Cover cover) final {
    stairs_ = find_staircase(call_, tile, keys, cover, lanes_);
    configure_again();
    may_be_disturbed_ = call_.mask.modifies() || cover == Cover::partial;
    multiply_scores(tile, stairs_.common, 0, tile.padded_rows);
    for (Index v = 0; v < stairs_.vectors; ++v) {
      multiply_scores(tile, stairs_.before(v), v * lanes_, lanes_);
      multiply_scores(tile, stairs_.behind(v), v * lanes_, lanes_);
    }
    float* const first = scores_ + (keys.begin - tile_begin_) * stride_;
    Base::leave_out(stairs_, keys, first);
    return Base::finish_scores(tile, keys, first);
  }

  /// o = o * factors (if `rescale`) + weights * values, the weights rounded to bfloat16.
  void accumulate(const Tile& tile, const ScoreTile<A>& weights, bool rescale) final {
    configure_again();
    if (rescale) {
      kernels().row_accumulate(nullptr, 0, call_.sizes.value_dim, nullptr, 0, tile.padded_rows,
                               tile.state.factors, tile.out, stride_, {});
    }
    pack_weights(tile.padded_rows, weights.keys);
    if (stairs_.vectors == 0) multiply_values(tile, weights.keys, 0, tile.padded_rows);
    for (Index v = 0; v < stairs_.vectors; ++v) {
      if (!stairs_.seen[v].empty()) multiply_values(tile, stairs_.seen[v], v * lanes_, lanes_);
    }
  }

 private:
  /// Pairs of dims of a packed key.
  static Index key_pairs(const AttentionCall<A>& call) {
    return round_up(call.sizes.key_dim, kChunk) / 2;
  }
  static Index out_lines(const AttentionCall<A>& call) {
    return round_up(call.sizes.value_dim, MatrixUnit::kRows);
  }
  /// A user's function, called since the last product, may have used the unit for itself.
  void configure_again() {
    if (may_be_disturbed_) unit_.configure();
    may_be_disturbed_ = false;
  }
  /// The whole chunks that hold `keys`, both counted from the key tile's first.
  KeyRange whole_chunks(KeyRange keys) const {
    return {(keys.begin - tile_begin_) / kChunk * kChunk, round_up(keys.end - tile_begin_, kChunk)};
  }

  /// Whether the scale is multiplied into the queries: where no bit is lost, that saves a pass over
  /// the scores. Rounding scale * q to bfloat16 would cost more than all other roundings.
  bool scales_queries() const {
    int exponent = 0;
    return std::frexp((std::abs)(call_.score.scale), &exponent) == 0.5f && exponent > -16 &&
           exponent <= 1;
  }
  /// Multiplies lines of rows by the scale. `factors`: room for one number a row.
  void scale_lines(float* x, Index lines, Index rows, float* factors) const {
    std::fill_n(factors, rows, call_.score.scale);
    kernels().row_accumulate(nullptr, 0, lines, nullptr, 0, rows, factors, x, stride_, {});
  }

  /// Packs a tile's converted queries, lines of rows, into pairs of dims, in place.
  void pack_queries(const Tile& tile) const {
    const Index dim = call_.sizes.key_dim, rows = tile.padded_rows;
    if (scales_queries()) scale_lines(tile.queries, dim, rows, tile.state.factors);
    widen_.pair_numbers(tile.queries, dim, rows, stride_, tile.queries, stride_);
    for (Index pair = ceil_div(dim, 2); pair < key_pairs(call_); ++pair) {
      std::fill_n(tile.queries + pair * stride_, rows, 0.0f);
    }
  }

  /// Copies keys to their places in the key tile. The rest of their chunks is 0.
  void pack_keys(const TileRows<A>& rows) const {
    const TensorRef& tensor = *rows.tensor;
    const Index stride = 2 * key_pairs(call_), dim = call_.sizes.key_dim;
    auto* const packed = reinterpret_cast<Eigen::bfloat16*>(packed_keys_);
    const KeyRange chunks = whole_chunks(rows.keys);
    std::memset(static_cast<void*>(packed + chunks.begin * stride), 0,
                static_cast<std::size_t>(chunks.size() * stride) * sizeof *packed);
    rows.for_each_row(rows.keys, [&](Index key, const void* row) {
      const auto* const from = static_cast<const Eigen::bfloat16*>(row);
      Eigen::bfloat16* const to = packed + (key - tile_begin_) * stride;
      if (tensor.has_contiguous_rows()) {
        std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(dim) * sizeof *to);
      } else {
        for (Index d = 0; d < dim; ++d) to[d] = from[d * tensor.stride.dim];
      }
    });
  }

  /// Transposes values, converted and at their places in the key tile, in pairs of keys. The rest
  /// of their chunks is 0.
  void pack_values(const FetchedRows<A>& fetched) const {
    const Index dim = call_.sizes.value_dim;
    const KeyRange keys = fetched.keys, chunks = whole_chunks(keys);
    std::fill(value_copy_ + chunks.begin * dim, value_copy_ + (keys.begin - tile_begin_) * dim,
              0.0f);
    std::fill(value_copy_ + (keys.end - tile_begin_) * dim, value_copy_ + chunks.end * dim, 0.0f);
    for (Index key = chunks.begin; key < chunks.end; key += kChunk) {
      float* const packed = packed_values_ + key / 2;
      widen_.pair_numbers(value_copy_ + key * dim, kChunk, dim, dim, value_pairs_, dim);
      kernels().transpose(value_pairs_, dim, kPairs, dim, packed, value_stride_);
      for (Index d = dim; d < out_lines_; ++d)
        std::fill_n(packed + d * value_stride_, kPairs, 0.0f);
    }
  }

  /// scale * (k . q) for the chunks that hold `keys` and some of the rows.
  void multiply_scores(const Tile& tile, KeyRange keys, Index first_row, Index rows) const {
    if (keys.empty()) return;
    const Index pairs = key_pairs(call_);
    const KeyRange chunks = whole_chunks(keys);
    float* const first = scores_ + chunks.begin * stride_ + first_row;
    unit_.multiply(packed_keys_ + chunks.begin * pairs, pairs, tile.queries + first_row, stride_,
                   chunks.size(), rows, 2 * pairs, true, first, stride_);
    if (!scales_queries()) {
      scale_lines(first, chunks.size(), rows, tile.state.factors + first_row);
    }
  }

  /// Packs a tile's weights, lines of rows, into pairs of keys, in place; keys that fill up the
  /// chunks weigh 0. A weight that is NaN may become a number: its row's denominator is NaN, and
  /// with it the output.
  void pack_weights(Index rows, KeyRange keys) const {
    const KeyRange chunks = whole_chunks(keys);
    float* const first = scores_ + chunks.begin * stride_;
    std::fill(first, scores_ + (keys.begin - tile_begin_) * stride_, 0.0f);
    std::fill(scores_ + (keys.end - tile_begin_) * stride_, scores_ + chunks.end * stride_, 0.0f);
    widen_.pair_numbers(first, chunks.size(), rows, stride_, scores_ + chunks.begin / 2 * stride_,
                        stride_);
  }

  /// o += packed weights * values for some of the rows.
  void multiply_values(const Tile& tile, KeyRange keys, Index first_row, Index rows) const {
    const KeyRange chunks = whole_chunks(keys);
    unit_.multiply(packed_values_ + chunks.begin / 2, value_stride_,
                   scores_ + chunks.begin / 2 * stride_ + first_row, stride_, out_lines_, rows,
                   chunks.size(), false, tile.out + first_row, stride_);
  }

  const MatrixUnit& unit_;
  const WidenTable& widen_;
  MatrixUnitScope scope_;
  Index value_stride_;
  float *value_copy_, *packed_keys_, *packed_values_, *value_pairs_;
  Index tile_begin_ = 0;
  Staircase stairs_;
  bool may_be_disturbed_ = false;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

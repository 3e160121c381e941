// attn/detail/forms/matrix_stages.hpp - level 7: what the stages of a tile do in the matrix form,
// the row-lane form of a bfloat16 call whose products are the matrix unit's:
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
#include <cstring>

#include "attn/config.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/forms/online_softmax.hpp"
#include "attn/detail/forms/scratch.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// The whole chunks that hold `keys`, both counted from the key tile's first.
inline KeyRange whole_chunks(KeyRange keys, Index tile_begin) {
  constexpr Index kChunk = 2 * MatrixUnit::kPairs;
  return {(keys.begin - tile_begin) / kChunk * kChunk, round_up(keys.end - tile_begin, kChunk)};
}

/// Whether the scale is multiplied into the queries: where no bit is lost, that saves a pass over
/// the scores. Rounding scale * q to bfloat16 would cost more than all other roundings.
inline bool scales_queries(const AttentionCall<float>& call) {
  int exponent = 0;
  return std::frexp(std::abs(call.scale), &exponent) == 0.5f && exponent > -16 && exponent <= 1;
}

/// Multiplies lines of rows by the scale. `factors` is scratch, one number a row.
inline void scale_lines(const AttentionCall<float>& call, float* x, Index lines, Index rows,
                        Index stride, float* factors) {
  std::fill_n(factors, rows, call.scale);
  call.kernels->row_accumulate(nullptr, 0, lines, nullptr, 0, rows, factors, x, stride, {});
}

/// Packs a tile's converted queries, lines of rows, into pairs of dims, in place.
inline void pack_queries(const AttentionCall<float>& call, float* queries, Index stride,
                         const OnlineSoftmax<float>& state) {
  if (scales_queries(call)) {
    scale_lines(call, queries, call.key_dim, state.rows, stride, state.correction);
  }
  call.widen->pair_numbers(queries, call.key_dim, state.rows, stride, queries, stride);
  const Index pairs = Scratch<float>::key_stride(call);
  for (Index pair = ceil_div(call.key_dim, 2); pair < pairs; ++pair) {
    std::fill_n(queries + pair * stride, state.rows, 0.0f);
  }
  // Dims that only fill up the tiles.
  for (Index d = call.value_dim; d < Scratch<float>::out_stride(call); ++d) {
    std::fill_n(state.out + d * state.out_stride, state.rows, 0.0f);
  }
}

/// Copies the rows of `keys` to their places in the key tile. The rest of their chunks is 0.
inline void pack_keys(const AttentionCall<float>& call, const Scratch<float>& scratch, Index batch,
                      Index head, KeyRange keys, Index tile_begin) {
  const TensorRef& tensor = call.source.keys;
  const auto* const elements = static_cast<const Eigen::bfloat16*>(tensor.data);
  const Index stride = 2 * Scratch<float>::key_stride(call), dim = call.key_dim;
  auto* const packed = reinterpret_cast<Eigen::bfloat16*>(scratch.packed_keys);
  const KeyRange chunks = whole_chunks(keys, tile_begin);
  std::memset(static_cast<void*>(packed + chunks.begin * stride), 0,
              static_cast<std::size_t>(chunks.size() * stride) * sizeof *packed);
  for (Index key = keys.begin; key < keys.end;) {
    const KeyMap::Run run = call.source.map.find(tensor, batch, head, key);
    const Index end = key + (std::min)(run.length, keys.end - key);
    const Eigen::bfloat16* from = elements + run.offset;
    for (; key < end; ++key, from += tensor.stride.length) {
      Eigen::bfloat16* const to = packed + (key - tile_begin) * stride;
      if (tensor.stride.dim == 1) {
        std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(dim) * sizeof *to);
      } else {
        for (Index d = 0; d < dim; ++d) to[d] = from[d * tensor.stride.dim];
      }
    }
  }
}

/// Transposes the values of `keys`, converted and at their places in the key tile, in pairs of
/// keys. The rest of their chunks is 0.
inline void pack_values(const AttentionCall<float>& call, const Scratch<float>& scratch,
                        KeyRange keys, Index tile_begin) {
  constexpr Index kPairs = MatrixUnit::kPairs;
  const Index dim = call.value_dim, stride = Scratch<float>::value_stride(call);
  const KeyRange chunks = whole_chunks(keys, tile_begin);
  float* const values = scratch.value_copy;
  std::fill(values + chunks.begin * dim, values + (keys.begin - tile_begin) * dim, 0.0f);
  std::fill(values + (keys.end - tile_begin) * dim, values + chunks.end * dim, 0.0f);
  for (Index key = chunks.begin; key < chunks.end; key += 2 * kPairs) {
    float* const packed = scratch.packed_values + key / 2;
    call.widen->pair_numbers(values + key * dim, 2 * kPairs, dim, dim, scratch.value_pairs, dim);
    call.kernels->transpose(scratch.value_pairs, dim, kPairs, dim, packed, stride);
    for (Index d = dim; d < Scratch<float>::out_stride(call); ++d) {
      std::fill_n(packed + d * stride, kPairs, 0.0f);
    }
  }
}

/// scale * (k . q) for the chunks that hold `keys` and some of the rows, beginning at `queries`
/// and, for the key tile's first key, at `scores`.
inline void multiply_scores(const AttentionCall<float>& call, const Scratch<float>& scratch,
                            const float* queries, Index rows, KeyRange keys, Index tile_begin,
                            float* scores, float* factors) {
  const Index stride = call.plan.row_tile, key_stride = Scratch<float>::key_stride(call);
  const KeyRange chunks = whole_chunks(keys, tile_begin);
  float* const first = scores + chunks.begin * stride;
  call.matrix_unit->multiply(scratch.packed_keys + chunks.begin * key_stride, key_stride, queries,
                             stride, chunks.size(), rows, 2 * key_stride, true, first, stride);
  if (!scales_queries(call)) scale_lines(call, first, chunks.size(), rows, stride, factors);
}

/// out += weights * values for some of the rows, beginning at `pairs` and `out`: the key tile's
/// weights in pairs of keys.
inline void multiply_values(const AttentionCall<float>& call, const Scratch<float>& scratch,
                            const float* pairs, Index rows, KeyRange keys, Index tile_begin,
                            float* out) {
  const Index stride = call.plan.row_tile, value_stride = Scratch<float>::value_stride(call);
  const KeyRange chunks = whole_chunks(keys, tile_begin);
  call.matrix_unit->multiply(
      scratch.packed_values + chunks.begin / 2, value_stride, pairs + chunks.begin / 2 * stride,
      stride, Scratch<float>::out_stride(call), rows, chunks.size(), false, out, stride);
}

/// Packs a tile's weights, lines of rows, into pairs of keys; keys that fill up the chunks weigh 0.
/// Returns the pair of the key tile's first two keys. In place. A weight that is NaN may become a
/// number: its row's denominator is NaN, and with it the output.
inline const float* pack_weights(const AttentionCall<float>& call, const Scratch<float>& scratch,
                                 Index rows, KeyRange keys, Index tile_begin) {
  const Index stride = call.plan.row_tile;
  const KeyRange chunks = whole_chunks(keys, tile_begin);
  float* const weights = scratch.scores;
  float* const first = weights + chunks.begin * stride;
  std::fill(first, weights + (keys.begin - tile_begin) * stride, 0.0f);
  std::fill(weights + (keys.end - tile_begin) * stride, weights + chunks.end * stride, 0.0f);
  call.widen->pair_numbers(first, chunks.size(), rows, stride, weights + chunks.begin / 2 * stride,
                           stride);
  return weights;
}

}  // namespace detail
}  // namespace attn

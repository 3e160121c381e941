// attn/detail/forms/tile_stages.hpp - level 7: the stages of one tile, as attention.hpp's loop
// names them.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/forms/matrix_stages.hpp"
#include "attn/detail/forms/online_softmax.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/scratch.hpp"
#include "attn/detail/rows/rows.hpp"
#include "attn/random.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Converts the queries of a tile; the padding is 0.
template <class A>
void load_queries(const AttentionCall<A>& call, const RowTile<A>& tile) {
  const bool lanes = tile.state.rows_are_lanes;
  tile.rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    const Index offset = call.q.offset(tile.rows.batch, head, query, 0);
    if (lanes) {
      load_columns(call.q, offset, end - begin, tile.queries + begin, tile.query_stride,
                   *call.kernels, *call.widen);
      return;
    }
    for (Index row = begin; row < end; ++row) {
      A* const line = tile.queries + row * tile.query_stride;
      load_row(call.q, offset + (row - begin) * call.q.stride.length, line, *call.widen);
      std::fill(line + call.key_dim, line + tile.query_stride, A(0));
    }
  });
  if (lanes && tile.rows.count < tile.state.rows) {
    for (Index d = 0; d < call.key_dim; ++d) {
      A* const line = tile.queries + d * tile.query_stride;
      std::fill(line + tile.rows.count, line + tile.state.rows, A(0));
    }
  }
  if constexpr (std::is_same_v<A, float>) {
    if (call.matrix_unit != nullptr) {
      pack_queries(call, tile.queries, tile.query_stride, tile.state);
    }
  }
}

/// What a stage of the row-lane form prefetches while the last row tile of `block` works on `keys`:
/// the rows that come after them. Scores and values alternate, which hides the order of either from
/// the CPU's own prefetching.
template <class A>
Prefetch next_rows(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowBlock& block,
                   const RowTile<A>& tile, const TileRows<A>& rows, KeyRange keys) {
  const bool is_last = tile.rows.first_row + tile.rows.count == block.first_row + block.count;
  if (!call.lists_rows() || !is_last || keys.end >= rows.end) return {};
  TileRows<A> next = rows;
  next.copy = nullptr;
  next.keys = {keys.end, (std::min)(rows.end, keys.end + keys.size())};
  next.list(scratch.ahead_rows);
  std::fill(scratch.ahead_rows + next.keys.size(), scratch.ahead_rows + keys.size(), nullptr);
  return {scratch.ahead_rows, rows.tensor->shape.dim * rows.tensor->element_size, 0};
}

/// scale * (q . k), softcapped: the scores of a tile before biases and masks. Where a vector of
/// rows sees nothing the scores are -infinity. In the dim-lane form the line of a row begins at the
/// tile's first key and is padded with -infinity. `rows` are the keys'; `ahead` is prefetched
/// meanwhile.
template <class A>
ScoreTile<A> compute_scores(const AttentionCall<A>& call, const Scratch<A>& scratch,
                            const RowTile<A>& tile, KeyRange keys, const Staircase& stairs,
                            const TileRows<A>& rows, Index tile_begin, const Prefetch& ahead) {
  const KernelTable<A>& kernels = *call.kernels;
  if (tile.state.rows_are_lanes) {
    const Index stride = call.plan.row_tile, lanes = call.lanes();
    // In the matrix form keys stand at their places in the key tile.
    A* const first =
        scratch.scores + (call.matrix_unit == nullptr ? 0 : (keys.begin - tile_begin) * stride);
    const auto compute = [&](KeyRange part, Index first_row, Index count, const Prefetch& next) {
      if (part.empty()) return;
      if constexpr (std::is_same_v<A, float>) {
        if (call.matrix_unit != nullptr) {
          multiply_scores(call, scratch, tile.queries + first_row, count, part, tile_begin,
                          scratch.scores + first_row, tile.state.correction + first_row);
          return;
        }
      }
      kernels.row_scores(scratch.key_rows + (part.begin - rows.keys.begin), part.size(),
                         call.key_dim, tile.queries + first_row, tile.query_stride, count,
                         call.scale, first + (part.begin - keys.begin) * stride + first_row, stride,
                         next);
    };
    const auto leave_out = [&](KeyRange part, Index first_row, Index count) {
      for (Index key = part.begin; key < part.end; ++key) {
        fill_absent(first + (key - keys.begin) * stride + first_row, count);
      }
    };
    compute(stairs.common, 0, tile.state.rows, ahead);
    for (Index v = 0; v < stairs.vectors; ++v) {
      const Index first_row = v * lanes;
      compute(stairs.before(v), first_row, lanes, {});
      compute(stairs.behind(v), first_row, lanes, {});
      leave_out({keys.begin, stairs.seen[v].begin}, first_row, lanes);
      leave_out({stairs.seen[v].end, keys.end}, first_row, lanes);
    }
    if (call.softcap > 0) {
      kernels.softcap(first, keys.size(), tile.state.rows, stride, call.softcap);
    }
    return {tile.rows, keys, first, 1, stride, call.kernels->set};
  }
  const Index stride = Scratch<A>::tile_keys(call);
  const Index before = keys.begin - tile_begin, end = keys.end - tile_begin;
  const Index padded = round_up(end, kernels.lanes);
  const auto pad = [&] {
    for (Index row = 0; row < tile.rows.count; ++row) {
      A* const line = scratch.scores + row * stride;
      fill_absent(line, before);
      fill_absent(line + end, padded - end);
    }
  };
  pad();
  rows.for_each_run(keys, tile.rows.count, [&](const RowRun& run, Index key) {
    rows.few_rows->scores(run, call.key_dim, tile.queries, tile.query_stride, tile.rows.count,
                          call.scale, scratch.scores + (key - tile_begin), stride);
  });
  if (call.softcap > 0) {
    kernels.softcap(scratch.scores, tile.rows.count, padded, stride, call.softcap);
    pad();
  }
  return {tile.rows, keys, scratch.scores + before, stride, 1, call.kernels->set};
}

/// add_values in the matrix form, with the weights rounded to bfloat16.
inline void add_values_by_matrix(const AttentionCall<float>& call, const Scratch<float>& scratch,
                                 const OnlineSoftmax<float>& state, KeyRange keys,
                                 const Staircase& stairs, Index tile_begin, bool rescale) {
  if (rescale) state.add_values(nullptr, 0, nullptr, 0, true);
  const float* const pairs = pack_weights(call, scratch, state.rows, keys, tile_begin);
  if (stairs.vectors == 0) {
    multiply_values(call, scratch, pairs, state.rows, keys, tile_begin, state.out);
  }
  for (Index v = 0; v < stairs.vectors; ++v) {
    if (stairs.seen[v].empty()) continue;
    const Index first_row = v * call.lanes();
    multiply_values(call, scratch, pairs + first_row, call.lanes(), stairs.seen[v], tile_begin,
                    state.out + first_row);
  }
}

/// o = o * correction + weights * values, in ascending order of keys for every row. `ahead` is
/// prefetched meanwhile.
template <class A>
void add_values(const AttentionCall<A>& call, const Scratch<A>& scratch,
                const OnlineSoftmax<A>& state, const ScoreTile<A>& weights, const Staircase& stairs,
                const TileRows<A>& rows, Index tile_begin, bool rescale, const Prefetch& ahead) {
  if constexpr (std::is_same_v<A, float>) {
    if (call.matrix_unit != nullptr) {
      add_values_by_matrix(call, scratch, state, weights.keys, stairs, tile_begin, rescale);
      return;
    }
  }
  const Index first_key = weights.keys.begin;
  if (!state.rows_are_lanes) {
    rows.for_each_run(weights.keys, state.rows, [&](const RowRun& run, Index key) {
      state.add_values(run, *rows.few_rows, weights.scores + (key - first_key), weights.row_stride,
                       rescale && key == first_key);
    });
    return;
  }
  const RowPointers values = scratch.value_rows + (first_key - rows.keys.begin);
  const Index stride = weights.key_stride;
  if (stairs.vectors == 0) {
    state.add_values(values, weights.keys.size(), weights.scores, stride, rescale, ahead);
    return;
  }
  const auto add = [&](KeyRange part, const OnlineSoftmax<A>& vectors, Index first_row,
                       bool scale) {
    vectors.add_values(values + (part.begin - first_key), part.size(),
                       weights.scores + (part.begin - first_key) * stride + first_row, stride,
                       scale);
  };
  bool has_before = false;
  for (Index v = 0; v < stairs.vectors; ++v) has_before |= !stairs.before(v).empty();
  // Rescaling comes before the first key of any vector.
  if (has_before) {
    for (Index v = 0; v < stairs.vectors; ++v) {
      add(stairs.before(v), state.vector(v), v * state.kernels->lanes, rescale);
    }
    rescale = false;
  }
  if (rescale || !stairs.common.empty()) add(stairs.common, state, 0, rescale);
  for (Index v = 0; v < stairs.vectors; ++v) {
    if (!stairs.behind(v).empty()) {
      add(stairs.behind(v), state.vector(v), v * state.kernels->lanes, false);
    }
  }
}

/// Turns masked scores into weights and adds them to the denominators. Returns whether the outputs
/// must be rescaled.
template <class A>
bool update_weights(const OnlineSoftmax<A>& state, const Scratch<A>& scratch,
                    const ScoreTile<A>& scores) {
  if (state.rows_are_lanes) {
    return state.update_weights(scores.scores, scores.keys.size(), scores.key_stride);
  }
  const Index end = scores.scores - scratch.scores + scores.keys.size();
  return state.update_weights(scratch.scores, round_up(end, state.kernels->lanes),
                              scores.row_stride);
}

/// Drops weights at random and scales the others up.
template <class A>
void apply_dropout(const AttentionCall<A>& call, const ScoreTile<A>& weights) {
  const KeyRange keys = weights.keys;
  weights.rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    const RandomPlane plane(RandomPlane::Stream::attention_weights, call.dropout.seed,
                            call.dropout.offset, weights.rows.batch, head);
    for (Index row = begin; row < end; ++row) {
      plane.for_each(query + row - begin, keys.begin, keys.end, [&](Index key, std::uint32_t bits) {
        A& weight = weights(row, key);
        weight = bits < call.dropout_threshold ? A(0) : weight * call.dropout_scale;
      });
    }
  });
}

/// Keeps the masked scores of a tile in the weights that the caller asked for, until the row's
/// denominator is known.
template <class A>
void keep_scores(const AttentionCall<A>& call, const ScoreTile<A>& scores) {
  const Stride4& stride = call.extra.weights.stride();
  const RowBlock& rows = scores.rows;
  rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    A* const kept = call.extra.weights.data() + call.weights_offset(rows.batch, head, query) +
                    scores.keys.begin * stride.dim;
    const Index keys = scores.keys.size();
    if (scores.row_stride == 1 && stride.dim == 1) {
      call.kernels->transpose(&scores(begin, scores.keys.begin), scores.key_stride, keys,
                              end - begin, kept, stride.length);
      return;
    }
    for (Index row = begin; row < end; ++row) {
      A* const line = kept + (row - begin) * stride.length;
      for (Index j = 0; j < keys; ++j) line[j * stride.dim] = scores(row, scores.keys.begin + j);
    }
  });
}

/// Marks the scores of some rows and keys as those of absent keys.
template <class A>
void clear_scores(const AttentionCall<A>& call, const RowBlock& rows, KeyRange keys) {
  const Index stride = call.extra.weights.stride().dim;
  rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    for (Index i = query; i < query + end - begin; ++i) {
      A* const kept = call.extra.weights.data() + call.weights_offset(rows.batch, head, i);
      for (Index key = keys.begin; key < keys.end; ++key) {
        kept[key * stride] = negative_infinity<A>();
      }
    }
  });
}

/// Turns the kept scores of one row into its weights: exp(s - m) / l, then dropout.
template <class A>
void finish_weights(const AttentionCall<A>& call, const Scratch<A>& scratch,
                    const OnlineSoftmax<A>& state, Index state_row, const RowBlock& row) {
  const Index chunk = Scratch<A>::tile_keys(call), stride = call.extra.weights.stride().dim;
  A* const kept =
      call.extra.weights.data() + call.weights_offset(row.batch, row.head(0), row.query(0));
  const A divisor = state.divisor(state_row);
  for (Index first = 0; first < call.key_length; first += chunk) {
    const KeyRange keys{first, (std::min)(call.key_length, first + chunk)};
    const Index padded = round_up(keys.size(), call.kernels->lanes);
    A* const line = scratch.scores;
    for (Index i = 0; i < keys.size(); ++i) line[i] = kept[(first + i) * stride];
    fill_absent(line + keys.size(), padded - keys.size());
    A max = state.max[state_row], unused_sum = 0, unused_correction = 0;
    call.kernels->dim_softmax(line, padded, 1, padded, &max, &unused_sum, &unused_correction);
    for (Index i = 0; i < keys.size(); ++i) {
      // An absent key's weight is 0 even where the row is NaN.
      line[i] = is_negative_infinity(kept[(first + i) * stride]) ? A(0) : line[i] / divisor;
    }
    const ScoreTile<A> tile{row, keys, line, padded, 1, call.kernels->set};
    if (call.has_dropout()) apply_dropout(call, tile);
    keep_scores(call, tile);
  }
}

/// Writes the outputs of a tile whose state has seen all keys.
template <class A>
void finish_rows(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowTile<A>& tile) {
  const OnlineSoftmax<A>& state = tile.state;
  const bool lanes = state.rows_are_lanes;
  state.normalize();
  tile.rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    const Index offset = call.out.offset(tile.rows.batch, head, query, 0);
    if (lanes) {
      store_columns(call.out, offset, end - begin, state.out + begin, state.out_stride,
                    *call.kernels, *call.widen);
    }
    for (Index row = begin; row < end; ++row) {
      const Index i = query + row - begin;
      if (!lanes) {
        store_row(call.out, offset + (row - begin) * call.out.stride.length,
                  state.out + row * state.out_stride, 1);
      }
      if (call.extra.log_sum_exp.data() != nullptr) {
        call.extra.log_sum_exp(tile.rows.batch, head, i, 0) = state.log_sum_exp(row);
      }
      if (call.extra.weights.data() != nullptr) {
        finish_weights(call, scratch, state, row, tile.rows.slice(row, 1));
      }
    }
  });
}

/// Replaces what is infinite or NaN in the fetched values by 0.
template <class A>
void zero_non_finite(A* values, Index count) {
  for (Index i = 0; i < count; ++i) {
    if (!is_finite(values[i])) values[i] = 0;
  }
}

/// Adds weight * value for the values that are infinite or NaN, and for live weights alone: a
/// dropped key's value must not reach the output, and 0 times infinity would.
template <class A>
void add_non_finite(const OnlineSoftmax<A>& state, const ScoreTile<A>& weights,
                    const TileRows<A>& rows) {
  rows.for_each_row(weights.keys, [&](Index key, const void* address) {
    const A* const value = static_cast<const A*>(address);
    for (Index d = 0; d < state.dim; ++d) {
      if (is_finite(value[d])) continue;
      for (Index row = 0; row < weights.rows.count; ++row) {
        const A weight = weights(row, key);
        if (bits_of(weight) == 0) continue;
        state.value(row, d) += weight * value[d];
      }
    }
  });
}

}  // namespace detail
}  // namespace attn

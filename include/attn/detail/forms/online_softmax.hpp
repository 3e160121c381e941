// attn/detail/forms/online_softmax.hpp - level 7: the state of a softmax that sees its scores tile
// by tile.
//
// For each row: m, a reference maximum (within 8 ln 2 of the true one), l = sum exp(s - m), and
// o = sum exp(s - m) * v. One more tile updates all three; two states of disjoint keys merge; o / l
// is the output and m + log(l) the log-sum-exp. Rows that have seen no key hold m = -infinity, l =
// 0.
//
// m moves only when it has grown by more than 8 ln 2, and o and l always share it: exact, and most
// tiles need no rescaling. Each row decides for itself, so its bits do not depend on its
// neighbours. Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax"
// (2018); T. Dao et al., "FlashAttention" (2022).
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cmath>
#include <cstddef>
#include <cstring>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// The state of the rows of one tile. In the row-lane form `out` is [dim][row], else [row][dim];
/// `out_stride` is the distance between lines.
template <class A>
struct OnlineSoftmax {
  const KernelTable<A>* kernels = nullptr;
  bool rows_are_lanes = false;
  Index rows = 0;  ///< a multiple of the lanes in the row-lane form; the excess is padding
  Index dim = 0;
  A* max = nullptr;
  A* sum = nullptr;
  A* correction = nullptr;  ///< scratch
  A* out = nullptr;
  Index out_stride = 0;

  Index lines() const { return rows_are_lanes ? dim : rows; }
  Index line_size() const { return rows_are_lanes ? rows : round_up(dim, kernels->lanes); }

  /// Element d of row r's o.
  A& value(Index r, Index d) const {
    return rows_are_lanes ? out[d * out_stride + r] : out[r * out_stride + d];
  }

  /// The state of vector v alone, in the row-lane form.
  OnlineSoftmax vector(Index v) const {
    OnlineSoftmax part = *this;
    part.rows = kernels->lanes;
    part.max += v * kernels->lanes;
    part.sum += v * kernels->lanes;
    part.correction += v * kernels->lanes;
    part.out += v * kernels->lanes;
    return part;
  }

  /// No key seen. A sink is a logit without a value: row r starts with sink(r) in m and l = 1.
  template <class Sink>
  void reset(Index real_rows, const Sink& sink) {
    for (Index r = 0; r < rows; ++r) {
      max[r] = r < real_rows ? sink(r) : negative_infinity<A>();
      sum[r] = is_negative_infinity(max[r]) ? A(0) : A(1);
    }
    // All bits 0 is 0.
    std::memset(out, 0, static_cast<std::size_t>(lines() * out_stride) * sizeof(A));
  }

  /// Turns a tile of scores into weights exp(s - m) and adds them to l. Returns whether o must be
  /// rescaled by `correction` before the tile's values are added.
  bool update_weights(A* scores, Index num_keys, Index stride) const {
    const auto softmax = rows_are_lanes ? kernels->row_softmax : kernels->dim_softmax;
    return softmax(scores, num_keys, rows, stride, max, sum, correction);
  }

  /// o = o * correction + weights * values, in the row-lane form. `ahead`: what to prefetch
  /// meanwhile.
  void add_values(RowPointers values, Index num_keys, const A* weights, Index stride, bool rescale,
                  const Prefetch& ahead = {}) const {
    kernels->row_accumulate(values, num_keys, dim, weights, stride, rows,
                            rescale ? correction : nullptr, out, out_stride, ahead);
  }
  /// The same in the dim-lane form, by the kernels that read such values.
  void add_values(const RowRun& values, const FewRowKernels<A>& few_rows, const A* weights,
                  Index stride, bool rescale) const {
    few_rows.accumulate(values, dim, weights, stride, rows, rescale ? correction : nullptr, out,
                        out_stride);
  }

  bool is_finite() const { return kernels->all_finite(out, lines(), line_size(), out_stride); }

  /// o /= l. Rows without a key keep o = 0.
  void normalize() const {
    for (Index r = 0; r < rows; ++r) correction[r] = divisor(r);
    if (rows_are_lanes) {
      kernels->row_divide(out, dim, rows, out_stride, correction);
    } else {
      for (Index r = 0; r < rows; ++r) {
        for (Index d = 0; d < dim; ++d) {
          A& value = out[r * out_stride + d];
          value = (value + A(0)) / correction[r];  // -0 becomes 0, as in row_divide
        }
      }
    }
  }

  /// l, or 1 for a row without a key. A row has a key (or a sink) unless m was never set; a sum
  /// that is NaN comes from a key too.
  A divisor(Index r) const { return is_empty(r) ? A(1) : sum[r]; }
  bool is_empty(Index r) const { return is_negative_infinity(max[r]) && bits_of(sum[r]) == 0; }

  /// log of the denominator; -infinity for a row without a key.
  A log_sum_exp(Index r) const {
    return is_empty(r) ? negative_infinity<A>() : max[r] + std::log(sum[r]);
  }
};

/// Merges the states of `count` disjoint key sets for one row, in their order: state i has max[i],
/// sum[i] and the unnormalised output parts[i] (null for none). Writes the merged state; `out` must
/// be zero.
template <class A>
void merge_states(const KernelTable<A>& kernels, Index count, const A* max, const A* sum,
                  const A* const* parts, Index dim, A& merged_max, A& merged_sum, A* out) {
  merged_max = negative_infinity<A>();
  merged_sum = 0;
  for (Index i = 0; i < count; ++i) {
    if (is_nan(max[i]) || max[i] > merged_max) merged_max = max[i];
  }
  for (Index i = 0; i < count; ++i) {
    if (is_negative_infinity(max[i]) && bits_of(sum[i]) == 0) continue;  // saw no key
    const A weight = is_negative_infinity(max[i]) ? A(1) : std::exp(max[i] - merged_max);
    merged_sum = std::fma(sum[i], weight, merged_sum);
    // A sink has no values; 0 times an infinite part would be NaN.
    if (parts[i] == nullptr || bits_of(weight) == 0) continue;
    kernels.few_rows->accumulate(RowRun{parts[i], 0, 1, 0, 0}, dim, &weight, 1, 1, nullptr, out,
                                 dim);
  }
}

}  // namespace detail
}  // namespace attn

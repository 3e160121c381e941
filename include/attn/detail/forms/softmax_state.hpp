// attn/detail/forms/softmax_state.hpp - level 7: the state of a softmax that sees its scores tile
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

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/kernel_table.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// m and l of some rows; o lies as the form of the tile has it.
template <class A>
struct SoftmaxState {
  A* max = nullptr;
  A* sum = nullptr;
  A* factors = nullptr;  ///< one a row: what o is multiplied or divided by next

  /// No key seen. A sink is a logit without a value: row r starts with sink(r) in m and l = 1. Rows
  /// behind `real_rows` are padding.
  template <class Sink>
  void reset(Index rows, Index real_rows, const Sink& sink) const {
    for (Index r = 0; r < rows; ++r) {
      max[r] = r < real_rows ? sink(r) : negative_infinity<A>();
      sum[r] = is_negative_infinity(max[r]) ? A(0) : A(1);
    }
  }

  /// A row has a key (or a sink) unless m was never set; a sum that is NaN comes from a key too.
  bool is_empty(Index r) const { return is_negative_infinity(max[r]) && bits_of(sum[r]) == 0; }
  /// l, or 1 for a row without a key.
  A divisor(Index r) const { return is_empty(r) ? A(1) : sum[r]; }
  void set_divisors(Index rows) const {
    for (Index r = 0; r < rows; ++r) factors[r] = divisor(r);
  }
  /// log of the denominator; -infinity for a row without a key.
  A log_sum_exp(Index r) const {
    return is_empty(r) ? negative_infinity<A>() : max[r] + std::log(as_written(sum[r]));
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
    const A weight =
        is_negative_infinity(max[i]) ? A(1) : std::exp(as_written(max[i] - merged_max));
    merged_sum = std::fma(sum[i], weight, merged_sum);
    // A sink has no values; 0 times an infinite part would be NaN.
    if (parts[i] == nullptr || bits_of(weight) == 0) continue;
    kernels.few_rows->accumulate(RowRun{parts[i], 0, 1, 0, 0}, dim, &weight, 1, 1, nullptr, out,
                                 dim);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

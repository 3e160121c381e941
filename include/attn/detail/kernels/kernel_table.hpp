// attn/detail/kernels/kernel_table.hpp - level 3: what a micro-kernel table offers.
//
// One table an instruction set, chosen at run time, so that speed does not depend on the user's
// compiler flags. Two forms of tile exist:
//
//   row lanes   one vector lane a row (query). Queries and outputs are held transposed, K and V are
//               read as scalars that are broadcast, from wherever their rows lie. Used from 16 rows
//               on: nothing of K and V is packed, any head dim works, and the softmax needs no sum
//               across lanes.
//   dim lanes   one vector lane an element of the head dim (scores, values) or a key (softmax).
//               Used for few rows, as in decoding, where most row lanes would idle.
//
// A third, the matrix form (forms/matrix_form.hpp), is row lanes whose products a matrix unit
// computes.
//
// All arithmetic is in A (float or double). Every lane's result depends on that lane's inputs
// alone.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>

#include "attn/config.hpp"
#include "attn/instruction_set.hpp"

namespace attn {
namespace detail {

/// Memory to bring closer while something else is computed: `bytes` bytes of each row, from
/// `offset` on. Nothing is read, so the addresses need not be valid.
struct Prefetch {
  const void* const* rows = nullptr;
  Index bytes = 0;   ///< 0: nothing
  Index offset = 0;  ///< bytes
};

/// Rows of keys or values at equal distances: row j begins at first + j * stride. A kernel that
/// steps from row to row reads from memory up to a third faster than one that loads the address of
/// each (Zen 4).
struct RowRun {
  const void* first = nullptr;
  Index stride = 0;  ///< bytes
  Index count = 0;
  /// Of row j of these, `ahead_bytes` are prefetched while row j is worked on; 0: nothing. They
  /// need not exist.
  std::uintptr_t ahead = 0;
  Index ahead_bytes = 0;
};

/// Elements of 16 bits, whatever class stores them.
struct __attribute__((may_alias)) HalfBits {
  std::uint16_t bits;
};
struct __attribute__((may_alias)) Bfloat16Bits {
  std::uint16_t bits;
};

/// The row-lane form reads keys and values by the address of each one's row.
using RowPointers = const void* const*;

/// The dim-lane form's products, for keys and values of one element type. Lines are rows (queries);
/// `stride` separates them and is a multiple of the lanes, and queries are padded with zeros to it.
template <class A>
struct FewRowKernels {
  /// scores[r][j] = scale * sum_d queries[r][d] * keys[j][d]
  void (*scores)(const RowRun& keys, Index dim, const A* queries, Index query_stride, Index rows,
                 A scale, A* scores, Index stride);
  /// out[r][d] = out[r][d] * correction[r] + sum_j weights[r][j] * values[j][d]; correction may be
  /// null (1).
  void (*accumulate)(const RowRun& values, Index dim, const A* weights, Index weight_stride,
                     Index rows, const A* correction, A* out, Index out_stride);
};

template <class A>
struct KernelTable {
  InstructionSet set;
  Index lanes;     ///< elements of a vector
  Index row_tile;  ///< rows of a row-lane tile that fill the registers; a multiple of lanes

  // Row lanes. `rows` counts lanes and is a multiple of `lanes`; `stride` is the distance from one
  // key's (or dim's) line of rows to the next.

  /// scores[j][r] = scale * sum_d keys[j][d] * queries[d][r], keys in the accumulation type;
  /// prefetches num_keys rows of `ahead`.
  void (*row_scores)(RowPointers keys, Index num_keys, Index dim, const A* queries,
                     Index query_stride, Index rows, A scale, A* scores, Index stride,
                     const Prefetch& ahead);
  /// One step of the online softmax, lane by lane: scores become exp(score - max), `sum` grows by
  /// them, and `max` moves up when it has grown by more than 8 ln 2 (which scales `sum` by
  /// `correction`, else 1). Returns whether any correction differs from 1. A score of -infinity
  /// becomes exactly 0.
  bool (*row_softmax)(A* scores, Index num_keys, Index rows, Index stride, A* max, A* sum,
                      A* correction);
  /// out[d][r] = out[d][r] * correction[r] + sum_j values[j][d] * weights[j][r], values in the
  /// accumulation type; correction may be null (1). Prefetches num_keys rows of `ahead`.
  void (*row_accumulate)(RowPointers values, Index num_keys, Index dim, const A* weights,
                         Index weight_stride, Index rows, const A* correction, A* out,
                         Index out_stride, const Prefetch& ahead);
  /// out[d][r] /= divisor[r]; -0 becomes 0.
  void (*row_divide)(A* out, Index dim, Index rows, Index stride, const A* divisor);

  // Dim lanes, as FewRowKernels above.

  const FewRowKernels<A>* few_rows;  ///< of keys and values in A
  /// As row_softmax, on `num_keys` (a multiple of `lanes`) scores of each row.
  bool (*dim_softmax)(A* scores, Index num_keys, Index rows, Index stride, A* max, A* sum,
                      A* correction);
  /// A row's scores become its weights, exp(score - max) / divisor, whose max and divisor are
  /// known. A score of -infinity becomes exactly 0, even where max or divisor are NaN. `count` is a
  /// multiple of `lanes`.
  void (*dim_weights)(A* scores, Index count, A max, A divisor);
  /// out[r][d] /= divisor[r] for `dim` (a multiple of `lanes`) elements of each row; -0 becomes 0.
  void (*dim_divide)(A* out, Index rows, Index dim, Index stride, const A* divisor);

  // Both forms, on `lines` runs of `count` elements (a multiple of `lanes`).

  /// x = cap * tanh(x / cap)
  void (*softcap)(A* x, Index lines, Index count, Index stride, A cap);
  /// to[c][r] = from[r][c] for rows x columns.
  void (*transpose)(const A* from, Index from_stride, Index rows, Index columns, A* to,
                    Index to_stride);
  /// Whether no element is infinite or NaN.
  bool (*all_finite)(const A* x, Index lines, Index count, Index stride);
};

/// The elements of a mask or bias at the places of some scores: entry i of line l has
/// first[l * line_stride + i * entry_stride].
template <class Element>
struct ScoreElements {
  const Element* first;
  Index line_stride, entry_stride;
};

/// What masks do to lines of `count` adjacent scores, `stride` apart. Only a program that has such
/// masks compiles them.
template <class A>
struct MaskKernels {
  /// A score whose byte is 0 (`keeps`), or is not (else), becomes -infinity.
  void (*keep_scores)(A* scores, Index lines, Index count, Index stride,
                      const ScoreElements<unsigned char>& mask, bool keeps);
  /// A score whose bias is -infinity becomes that; the others grow by theirs, if it `adds`.
  void (*bias_scores)(A* scores, Index lines, Index count, Index stride,
                      const ScoreElements<A>& bias, bool adds);
  /// The score of line l, entry i falls by slope * |distance + i - l|.
  void (*slope_scores)(A* scores, Index lines, Index count, Index stride, Index distance, A slope);
};
/// Between 16-bit storage and float.
struct WidenTable {
  // To float, exactly.
  void (*half)(const HalfBits* from, float* to, Index count);
  void (*bfloat16)(const Bfloat16Bits* from, float* to, Index count);
  /// Pairs of lines of `count` elements, rounded to bfloat16 (to nearest, ties to even): lane r of
  /// to's line i holds from[2 i][r] in its lower half and from[2 i + 1][r] in its upper. A last
  /// line without another is paired with zeros. `to` may be `from`, or begin before it.
  void (*pair_bfloat16)(const float* from, Index lines, Index count, Index from_stride, float* to,
                        Index to_stride);
  /// The same, in little more than half the time, for what holds no NaN, or none that rounding
  /// could change: widened bfloat16. Other NaNs become any number.
  void (*pair_numbers)(const float* from, Index lines, Index count, Index from_stride, float* to,
                       Index to_stride);
};

}  // namespace detail
}  // namespace attn

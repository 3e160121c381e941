// attn/layers/rotary.hpp - level 14: rotary position embedding: queries and keys are turned by
// angles that grow with their position, so that their products depend on distances.
#pragma once

#include <utility>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/projection/rotary_rows.hpp"
#include "attn/detail/projection/rotary_table.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/executor_options.hpp"
#include "attn/layers/rotary_scaling.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// Which elements form a pair that is turned together. Weights are trained for one of the two; of
/// rotary_dim elements
///   half_split    pairs i and i + rotary_dim / 2   (GPT-NeoX; Llama as Hugging Face stores it)
///   interleaved   pairs 2 i and 2 i + 1            (RoFormer, GPT-J; Llama as GGUF stores it)
enum class RotaryPairing { half_split, interleaved };

/// What a rotary embedding does beyond turning all of a head at the plain frequencies.
struct RotaryOptions {
  /// The first rotary_dim elements are turned, the others left alone. Even; 0: all.
  Index rotary_dim = 0;
  RotaryScaling scaling;
  /// Several positions a token: the first sections[0] pairs turn by its first position, the next
  /// sections[1] by its second, and so on; together all pairs. Qwen2-VL: 16, 24, 24 for time, row
  /// and column. Empty: one position a token. Read when the embedding is made.
  Span<const Index> sections;
};

/// Turns pair i of a token at position p by the angle p * f(i), f(i) = base^(-2 i / rotary_dim):
///
///   (x, y) -> (x cos - y sin, y cos + x sin)
///
/// With sections (RotaryOptions), p is the position of the pair's section. Two axes of an image
/// whose frequencies begin anew are from_frequencies with each frequency twice, and two sections.
/// Positions may be negative: that turns back. Position 0 leaves every bit as it is, unless the
/// scaling has an attention factor. Many threads may use one const object.
/// Error: one rounding to the type of x, and 2^-51 (1 + |p|) of the length of the pair; angles are
/// computed in double.
/// Source: J. Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
class RotaryEmbedding {
 public:
  /// Throws OptionError for a rotary_dim that is odd or beyond head_dim, a base that is not
  /// positive, a scaling without sense, or sections that are not all pairs.
  ATTN_ALWAYS_INLINE RotaryEmbedding(Index head_dim, RotaryPairing pairing, double base = 10000,
                                     const RotaryOptions& options = {})
      : RotaryEmbedding(head_dim, pairing,
                        detail::make_rotary_table(
                            head_dim, options.rotary_dim == 0 ? head_dim : options.rotary_dim, base,
                            options.scaling, options.sections)) {}
  /// With one frequency a pair, in radians a position: pair i turns by p * frequencies[i], and
  /// turned elements are multiplied by attention_factor. For rules that RotaryScaling does not
  /// have; all is copied, and the memory does not depend on how far positions go. rotary_dim is
  /// twice their number: the first elements of a head turn, the others are left alone. A frequency
  /// may be 0 (the pair does not turn) or negative. `sections`: as in RotaryOptions. Throws
  /// OptionError for none or more than head_dim / 2 frequencies, numbers that are not finite, or
  /// sections that are not all pairs.
  ATTN_ALWAYS_INLINE static RotaryEmbedding from_frequencies(Index head_dim, RotaryPairing pairing,
                                                             Span<const double> frequencies,
                                                             double attention_factor = 1,
                                                             Span<const Index> sections = {}) {
    return {head_dim, pairing,
            detail::make_rotary_table(head_dim, frequencies, attention_factor, sections)};
  }
  /// With given cosines and sines [1, 1, positions, rotary_dim / 2] of positions 0, 1, ..., which
  /// are copied; other positions are refused. Throws ShapeError.
  template <class T>
  ATTN_ALWAYS_INLINE static RotaryEmbedding from_tables(Index head_dim, RotaryPairing pairing,
                                                        const Tensor4<T>& cosines,
                                                        const Tensor4<T>& sines) {
    return {head_dim, pairing, detail::copy_rotary_table(head_dim, cosines, sines)};
  }

  ATTN_ALWAYS_INLINE RotaryEmbedding(const RotaryEmbedding&) = default;
  ATTN_ALWAYS_INLINE RotaryEmbedding(RotaryEmbedding&&) noexcept = default;
  /// Where it throws std::bad_alloc, nothing has changed.
  ATTN_ALWAYS_INLINE RotaryEmbedding& operator=(const RotaryEmbedding& other) {
    return *this = RotaryEmbedding(other);
  }
  ATTN_ALWAYS_INLINE RotaryEmbedding& operator=(RotaryEmbedding&&) noexcept = default;

  ATTN_ALWAYS_INLINE Index head_dim() const { return head_dim_; }
  ATTN_ALWAYS_INLINE Index rotary_dim() const { return 2 * table_.pairs; }
  ATTN_ALWAYS_INLINE RotaryPairing pairing() const { return pairing_; }
  /// Radians a position, one a pair; empty for given tables.
  ATTN_ALWAYS_INLINE Span<const double> frequencies() const { return table_.frequencies; }
  /// How many pairs turn by each position of a token; all by the only one, unless options say more.
  ATTN_ALWAYS_INLINE Span<const Index> sections() const { return table_.sections; }
  /// What turned elements are multiplied by: 1, unless the scaling or from_frequencies says more.
  ATTN_ALWAYS_INLINE double attention_factor() const { return table_.factor; }

  /// Turns x [B, H, S, head_dim] in place, of any element type and strides: token i of batch b
  /// stands at first_position[b] + i, in all sections. What is about to be appended to a cache
  /// stands at cache.lengths(). `options`: an Executor*, or any options that hold one. Throws
  /// ShapeError before anything is written.
  template <class X>
  ATTN_ALWAYS_INLINE void apply(X&& x, PerBatch first_position,
                                const ExecutorOptions& options = {}) const {
    detail::apply_rotary(table_, pairing_ == RotaryPairing::interleaved, head_dim_,
                         detail::output_view<X>(x), first_position, options.executor);
  }
  /// The same at any positions, [B|1, 1, S, 1] or one a section: see TokenPositions.
  template <class X>
  ATTN_ALWAYS_INLINE void apply(X&& x, const TokenPositions& positions,
                                const ExecutorOptions& options = {}) const {
    detail::apply_rotary(table_, pairing_ == RotaryPairing::interleaved, head_dim_,
                         detail::output_view<X>(x), positions, options.executor);
  }
  /// Turns x [B, H, S, head_dim] in place by `steps` positions more: what apply() has turned to
  /// position p is then as at p + steps, in all sections, within the rounding to the type of x. The
  /// attention factor is not applied again. Throws ShapeError before anything is written, also for
  /// given tables.
  template <class X>
  ATTN_ALWAYS_INLINE void shift(X&& x, Index steps, const ExecutorOptions& options = {}) const {
    detail::shift_rotary(table_, pairing_ == RotaryPairing::interleaved, head_dim_,
                         detail::output_view<X>(x), steps, options.executor);
  }

 private:
  ATTN_ALWAYS_INLINE RotaryEmbedding(Index head_dim, RotaryPairing pairing,
                                     detail::RotaryTable table)
      : head_dim_(head_dim), pairing_(pairing), table_(std::move(table)) {}

  Index head_dim_;
  RotaryPairing pairing_;
  detail::RotaryTable table_;
};

}  // namespace attn

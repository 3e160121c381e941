// attn/options.hpp - level 3: the options of a call, and what it may return beside the output.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/executor.hpp"
#include "attn/instruction_set.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// One number for all batches, or one each batch of q: lengths, offsets, first positions. Converts
/// from any integer, and from lvalue arrays, std::array, std::vector or Span of 32- or 64-bit
/// signed integers, which must outlive every use.
class PerBatch {
  template <class Number>
  static constexpr bool is_index_v = std::is_integral_v<Number>&& std::is_signed_v<Number> &&
                                     (sizeof(Number) == 4 || sizeof(Number) == 8);

 public:
  template <class Number,
            std::enable_if_t<std::is_integral_v<Number> && !std::is_same_v<Number, bool>, int> = 0>
  ATTN_ALWAYS_INLINE constexpr PerBatch(Number value) : value_(static_cast<Index>(value)) {}

  template <class Number, class = std::enable_if_t<is_index_v<std::remove_const_t<Number>>>>
  ATTN_ALWAYS_INLINE constexpr PerBatch(Span<Number> values)
      : values_(values.data()),
        size_(values.size()),
        is_wide_(sizeof(Number) == 8),
        is_scalar_(false) {}
  template <class Number, std::size_t N,
            class = std::enable_if_t<is_index_v<std::remove_const_t<Number>>>>
  ATTN_ALWAYS_INLINE constexpr PerBatch(Number (&values)[N])
      : PerBatch(Span<const Number>(values)) {}
  template <class Number, std::size_t N>
  PerBatch(Number (&&values)[N]) = delete;  // a temporary: name the array first
  template <class Number, std::size_t N, class = std::enable_if_t<is_index_v<Number>>>
  ATTN_ALWAYS_INLINE constexpr PerBatch(const std::array<Number, N>& values)
      : PerBatch(Span<const Number>(values)) {}
  template <class Number, std::size_t N>
  PerBatch(const std::array<Number, N>&& values) = delete;  // a temporary: name the array first
  template <class Number, class Allocator, class = std::enable_if_t<is_index_v<Number>>>
  ATTN_ALWAYS_INLINE PerBatch(const std::vector<Number, Allocator>& values)
      : PerBatch(Span<const Number>(values)) {}
  template <class Number, class Allocator>
  PerBatch(const std::vector<Number, Allocator>&& values) = delete;  // a temporary: name the vector
  // Neither unsigned nor narrow: the numbers are read where they lie, as 32 or 64 signed bits.
  template <class Number, std::size_t N, std::enable_if_t<!is_index_v<Number>, int> = 0>
  PerBatch(const Number (&)[N]) = delete;  // take std::int32_t, std::int64_t or attn::Index
  template <class Number, class Allocator, std::enable_if_t<!is_index_v<Number>, int> = 0>
  PerBatch(const std::vector<Number, Allocator>&) = delete;  // take std::vector<attn::Index>

  /// Whether one number serves all batches.
  ATTN_ALWAYS_INLINE constexpr bool is_scalar() const { return is_scalar_; }
  /// How many numbers were given (1 for a scalar).
  ATTN_ALWAYS_INLINE constexpr Index size() const { return is_scalar_ ? 1 : size_; }
  ATTN_ALWAYS_INLINE Index operator[](Index batch) const {
    if (is_scalar_) return value_;
    return detail::add_within_range(
        value_, is_wide_ ? static_cast<Index>(static_cast<const std::int64_t*>(values_)[batch])
                         : static_cast<Index>(static_cast<const std::int32_t*>(values_)[batch]));
  }

  /// The same numbers, each moved by `shift`: causal_from(PerBatch(lengths) - query_length). What
  /// would leave the range of Index stays at its end.
  friend ATTN_ALWAYS_INLINE constexpr PerBatch operator+(PerBatch numbers, Index shift) {
    numbers.value_ = detail::add_within_range(numbers.value_, shift);
    return numbers;
  }
  friend ATTN_ALWAYS_INLINE constexpr PerBatch operator-(PerBatch numbers, Index shift) {
    // The magnitude of the least Index is one more than the largest.
    constexpr Index kLeast = (std::numeric_limits<Index>::min)();
    return shift == kLeast ? numbers + -(kLeast + 1) + 1 : numbers + -shift;
  }

 private:
  Index value_ = 0;  // of a scalar; else added to each of the values
  const void* values_ = nullptr;
  Index size_ = 0;
  bool is_wide_ = false;
  bool is_scalar_ = true;
};

/// Dropout on the attention weights: each is dropped with `probability` and the others are scaled
/// by 1 / (1 - probability). The random bits are a pure function of (seed, offset, batch, query
/// head, query, key): use another seed or offset for every call of a training step.
struct Dropout {
  double probability = 0;
  std::uint64_t seed = 0, offset = 0;
};

/// Scratch memory handed in by the caller; attention_workspace_bytes says how much. No alignment
/// is needed. A call writes to it from its first to its last moment: calls that run at the same
/// time must not share one, nor one options struct that names it; calls one after the other may.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// What a call of attention does beyond q, k, v and the mask. The defaults are the plain formula.
struct AttentionOptions {
  /// Multiplies q . k. Unset: 1 / sqrt(key dim). Must be finite; 0 and negative are legal.
  std::optional<double> scale;
  /// c > 0: scores become c * tanh(score / c), before biases and masks. 0: none.
  double softcap = 0;
  Dropout dropout;
  /// One logit a query head that joins the softmax's denominator and has no value. -infinity: none.
  Span<const double> sinks;
  /// The position of query 0 among the keys, for causal masks, windows, ALiBi and lambdas. Unset:
  /// what a causal mask says, else a cache's past, else Sk - Sq.
  std::optional<PerBatch> query_offset;
  /// Who runs the work. Unset: the calling thread alone. The threads of an executor compute in a
  /// floating-point mode of their own: see ThreadPool.
  Executor* executor = nullptr;
  /// Scratch memory. Unset: allocated once a call.
  Workspace workspace = {};
  /// Forces a lower instruction set than the CPU's best; OptionError if the CPU lacks it.
  InstructionSet instruction_set = InstructionSet::best;
  /// Allows the weights to be rounded to bfloat16 before they meet V, which lets a call whose q, k
  /// and v are all bfloat16 use the CPU's instructions for products of bfloat16. Used with
  /// instruction_set best or avx512, from 16 rows (queries times the query heads that share a key)
  /// on, where the CPU has AMX and the system permits its use (Linux; asked for once a process, by
  /// the first such call), and on AMD's CPUs with AVX512_BF16 (Zen 4 and later). Elsewhere nothing
  /// changes, not a bit.
  /// Error: each output is off by up to 2^-8 sum_j |w_j v_j| more; as a whole by about 1.6e-3
  /// (Frobenius, relative) for normally distributed q, k and v. Scores, the softmax's denominator
  /// and log_sum_exp stay those of float, and returned weights are not rounded. These instructions
  /// count numbers below 2^-126 in magnitude as 0: in q, scale * q, k, v, products and sums.
  bool allow_bf16_weights = false;
};

namespace detail {

template <class T>
inline constexpr bool is_element_v =
    std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, Eigen::half> ||
    std::is_same_v<T, Eigen::bfloat16>;

}  // namespace detail

/// The type that sums are held in: double if any of T... is double, else float.
template <class... T>
using AccumulationType =
    std::conditional_t<(std::is_same_v<std::remove_const_t<T>, double> || ...), double, float>;

/// What a call may write beside the output; a view that is not set is not computed.
template <class A>
struct AttentionOutputs {
  Tensor4<A> weights;      ///< [B, Hq, Sq, Sk]: the weights that were multiplied with V
  Tensor4<A> log_sum_exp;  ///< [B, Hq, Sq, 1]: log of the softmax's denominator, the sink included
};

/// What the form that returns its results computes beside the output.
enum class Want : unsigned { output = 0, weights = 1, log_sum_exp = 2 };
ATTN_ALWAYS_INLINE constexpr Want operator|(Want a, Want b) {
  return static_cast<Want>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
ATTN_ALWAYS_INLINE constexpr bool operator&(Want a, Want b) {
  return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0;
}

/// The results of the form that returns them; what was not wanted is empty. Where an assignment
/// throws std::bad_alloc, nothing has changed.
template <class T, class A>
struct AttentionResult {
  Tensor4Buffer<T> output;       ///< [B, Hq, Sq, Dv]
  Tensor4Buffer<A> weights;      ///< [B, Hq, Sq, Sk]
  Tensor4Buffer<A> log_sum_exp;  ///< [B, Hq, Sq, 1]

  ATTN_ALWAYS_INLINE AttentionResult() = default;
  ATTN_ALWAYS_INLINE AttentionResult(Tensor4Buffer<T> out, Tensor4Buffer<A> all_weights = {},
                                     Tensor4Buffer<A> sums = {})
      : output(std::move(out)), weights(std::move(all_weights)), log_sum_exp(std::move(sums)) {}
  ATTN_ALWAYS_INLINE AttentionResult(const AttentionResult&) = default;
  ATTN_ALWAYS_INLINE AttentionResult(AttentionResult&&) noexcept = default;
  ATTN_ALWAYS_INLINE AttentionResult& operator=(const AttentionResult& other) {
    return *this = AttentionResult(other);
  }
  ATTN_ALWAYS_INLINE AttentionResult& operator=(AttentionResult&&) noexcept = default;
};

}  // namespace attn

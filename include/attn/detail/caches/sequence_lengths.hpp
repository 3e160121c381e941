// attn/detail/caches/sequence_lengths.hpp - level 10: the sequences of a cache, and how many tokens
// each has.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/caches/reorder.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {

/// The lengths of the sequences of a cache.
class SequenceLengths {
 public:
  /// The number of sequences.
  ATTN_ALWAYS_INLINE Index batch() const { return static_cast<Index>(lengths_.size()); }
  /// The number of tokens of sequence b, which is the position that its next token takes.
  ATTN_ALWAYS_INLINE Index length(Index b) const { return lengths_[static_cast<std::size_t>(b)]; }
  /// The same of all sequences.
  ATTN_ALWAYS_INLINE Span<const Index> lengths() const { return lengths_; }
  /// Sk of a call.
  ATTN_ALWAYS_INLINE Index longest_length() const {
    return lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  }

 protected:
  /// What this class stores of a sequence.
  static constexpr Index kSequenceBytes = 2 * sizeof(Index);

  ATTN_ALWAYS_INLINE SequenceLengths() = default;
  ATTN_ALWAYS_INLINE explicit SequenceLengths(Index batch)
      : lengths_(static_cast<std::size_t>(batch)), scratch_(lengths_.size()) {}

  ATTN_ALWAYS_INLINE void swap(SequenceLengths& other) noexcept {
    lengths_.swap(other.lengths_);
    scratch_.swap(other.scratch_);
  }

  ATTN_ALWAYS_INLINE Index& held_length(Index b) { return lengths_[static_cast<std::size_t>(b)]; }
  ATTN_ALWAYS_INLINE void rotate_lengths(Span<const Index> parents, Index first) {
    rotate_numbers(lengths_.data(), 1, 1, parents, first);
  }
  /// Room for a number a sequence, so that nothing allocates later.
  ATTN_ALWAYS_INLINE Index* scratch() { return scratch_.data(); }

  /// Numbers of the sequences, for calls whose batches share a single sequence too.
  ATTN_ALWAYS_INLINE static PerBatch per_batch(const std::vector<Index>& numbers) {
    return numbers.size() == 1 ? PerBatch(numbers[0]) : PerBatch(numbers);
  }
  ATTN_ALWAYS_INLINE static PerBatch per_batch(Span<const Index> numbers) {
    return numbers.size() == 1 ? PerBatch(numbers[0]) : PerBatch(numbers);
  }
  ATTN_ALWAYS_INLINE PerBatch per_batch_lengths() const { return per_batch(lengths_); }

 private:
  std::vector<Index> lengths_;
  std::vector<Index> scratch_;
};

}  // namespace detail
}  // namespace attn

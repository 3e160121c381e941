// attn/random.hpp - level 1: random bits from a counter (Philox), and values drawn from them.
#pragma once

#include <cstdint>

#include "attn/config.hpp"

namespace attn {

namespace detail {
inline namespace ATTN_BUILD {

inline void philox_rounds(std::uint32_t (&word)[4], std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * word[2];
    word[0] = static_cast<std::uint32_t>(product1 >> 32) ^ word[1] ^ key0;
    word[2] = static_cast<std::uint32_t>(product0 >> 32) ^ word[3] ^ key1;
    word[1] = static_cast<std::uint32_t>(product1);
    word[3] = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// Philox4x32-10: 128 random bits that are a pure function of a 128-bit counter and a 64-bit key.
/// Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
struct Philox {
  std::uint32_t word[4];

  ATTN_ALWAYS_INLINE Philox(std::uint64_t counter_low, std::uint64_t counter_high,
                            std::uint64_t key)
      : word{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
             static_cast<std::uint32_t>(counter_high),
             static_cast<std::uint32_t>(counter_high >> 32)} {
    detail::philox_rounds(word, key);
  }

  ATTN_ALWAYS_INLINE std::uint64_t low() const { return word[0] | std::uint64_t{word[1]} << 32; }
  ATTN_ALWAYS_INLINE std::uint64_t high() const { return word[2] | std::uint64_t{word[3]} << 32; }
};

/// The random bits of one dropout call: bits(row, column) for a plane of a stream. Which plane: a
/// (batch, query head) pair for attention's weights, a batch for the block's features. Two streams
/// of one seed and offset are independent.
class RandomPlane {
 public:
  enum class Stream : std::uint64_t { attention_weights = 0, block_features = 1 };

  ATTN_ALWAYS_INLINE RandomPlane(Stream stream, std::uint64_t seed, std::uint64_t offset,
                                 Index batch, Index head)
      : key_(Philox(offset,
                    (static_cast<std::uint64_t>(batch) << 32 ^ static_cast<std::uint64_t>(head)) ^
                        static_cast<std::uint64_t>(stream) << 63,
                    seed)
                 .low()) {}

  /// 32 uniform bits each for the columns 4k .. 4k + 3 that `column` lies among.
  ATTN_ALWAYS_INLINE Philox bits4(Index row, Index column) const {
    return Philox(static_cast<std::uint64_t>(column) >> 2, static_cast<std::uint64_t>(row), key_);
  }
  /// 32 uniform bits for (row, column).
  ATTN_ALWAYS_INLINE std::uint32_t bits(Index row, Index column) const {
    return bits4(row, column).word[column & 3];
  }

  /// Calls f(column, bits) for the columns [begin, end) of a row, from left to right.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each(Index row, Index begin, Index end, const F& f) const {
    for (Index column = begin; column < end;) {
      const Philox four = bits4(row, column);
      do {
        f(column, four.word[column & 3]);
      } while ((++column & 3) != 0 && column < end);
    }
  }

 private:
  std::uint64_t key_;
};

/// Dropout's decision as an integer comparison: a weight is dropped when its 32 bits lie below
/// round(p * 2^32). 0 drops none, 2^32 drops all.
ATTN_ALWAYS_INLINE std::uint64_t dropout_threshold(double probability) {
  return static_cast<std::uint64_t>(probability * 4294967296.0 + 0.5);
}

/// A seeded sequence of uniform numbers (for initialising weights): element i of `stream` is a pure
/// function of (seed, stream, i).
class UniformSequence {
 public:
  ATTN_ALWAYS_INLINE UniformSequence(std::uint64_t seed, std::uint64_t stream)
      : seed_(seed), stream_(stream) {}

  /// Element `i`, uniform in [-limit, limit).
  ATTN_ALWAYS_INLINE double at(Index i, double limit) const {
    const std::uint64_t bits = Philox(static_cast<std::uint64_t>(i), stream_, seed_).low() >> 11;
    return limit * (static_cast<double>(bits) * 0x1p-52 - 1.0);
  }

 private:
  std::uint64_t seed_, stream_;
};

}  // namespace attn

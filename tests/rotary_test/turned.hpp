// tests/rotary_test/turned.hpp - rotation by the book.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attn/layers/rotary.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {

inline constexpr RotaryPairing kPairings[] = {RotaryPairing::half_split,
                                              RotaryPairing::interleaved};

/// Where the elements of pair i lie.
struct PairPlace {
  Index first, second;
};
inline PairPlace place_of(RotaryPairing pairing, Index rotary_dim, Index i) {
  if (pairing == RotaryPairing::half_split) return {i, i + rotary_dim / 2};
  return {2 * i, 2 * i + 1};
}

/// Holds `actual` to x turned by the book, in long double: position(b, i) * frequency(pair).
template <class T, class Position>
void expect_turned(const RotaryEmbedding& rotary, const TestTensor<T>& x,
                   const TestTensor<T>& actual, const Position& position) {
  Index failures = 0;
  for_each_index(x.shape(), [&](Index b, Index h, Index i, Index d) {
    if (d >= rotary.rotary_dim()) {
      EXPECT_TRUE(same_bits(actual(b, h, i, d), x(b, h, i, d)));
      return;
    }
    if (d >= rotary.rotary_dim() / 2) return;  // pairs
    const PairPlace at = place_of(rotary.pairing(), rotary.rotary_dim(), d);
    const long double p = static_cast<long double>(position(b, i));
    const long double angle = p * static_cast<long double>(rotary.frequencies()[d]);
    const long double first = widen(x(b, h, i, at.first)), second = widen(x(b, h, i, at.second));
    const long double factor = static_cast<long double>(rotary.attention_factor());
    const long double expected[] = {factor * (first * std::cos(angle) - second * std::sin(angle)),
                                    factor * (second * std::cos(angle) + first * std::sin(angle))};
    const long double turned[] = {widen(actual(b, h, i, at.first)),
                                  widen(actual(b, h, i, at.second))};
    // Half a step of T, and the angle's own error: |p| f 2^-53, and a few more of cos and sin.
    const long double bar = factor * std::hypot(first, second) * 0x1p-51L * (1 + std::abs(p));
    for (int side = 0; side < 2; ++side) {
      const long double allowed = bar + epsilon<T>() / 2 * std::abs(expected[side]) +
                                  widen((std::numeric_limits<T>::denorm_min)()) / 2;
      if (!(std::abs(turned[side] - expected[side]) <= allowed) && ++failures < 4) {
        ADD_FAILURE() << "pair " << d << " at position " << p << ": " << turned[side]
                      << " instead of " << expected[side];
      }
    }
  });
}

}  // namespace test
}  // namespace attn

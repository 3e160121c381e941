#include "attn/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

namespace attn {
namespace {

using Stream = RandomPlane::Stream;

// Source: kat_vectors of Random123 (J. Salmon et al., 2011), philox4x32, 10 rounds.
TEST(Philox, GivesTheKnownAnswers) {
  struct Case {
    std::uint32_t counter[4], key[2], expected[4];
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    const auto join = [](std::uint32_t low, std::uint32_t high) {
      return low | std::uint64_t{high} << 32;
    };
    const Philox philox(join(c.counter[0], c.counter[1]), join(c.counter[2], c.counter[3]),
                        join(c.key[0], c.key[1]));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(philox.word[i], c.expected[i]) << "word " << i;
    EXPECT_EQ(philox.low(), join(c.expected[0], c.expected[1]));
    EXPECT_EQ(philox.high(), join(c.expected[2], c.expected[3]));
  }
}

TEST(RandomPlane, IsAPureFunctionOfItsCounter) {
  const RandomPlane a(Stream::attention_weights, 7, 8, 2, 3);
  const RandomPlane b(Stream::attention_weights, 7, 8, 2, 3);
  for (Index row = 0; row < 5; ++row) {
    for (Index column = 0; column < 9; ++column) {
      EXPECT_EQ(a.bits(row, column), b.bits(row, column));
    }
  }
}

// Every coordinate matters: two planes that differ in one never agree in 64 places, and the
// places of one plane are all different. (A false alarm has a chance below 1e-6.)
TEST(RandomPlane, EveryCoordinateGivesOtherBits) {
  const RandomPlane base(Stream::attention_weights, 7, 8, 2, 3);
  const RandomPlane others[] = {
      RandomPlane(Stream::block_features, 7, 8, 2, 3),
      RandomPlane(Stream::attention_weights, 6, 8, 2, 3),
      RandomPlane(Stream::attention_weights, 7, 9, 2, 3),
      RandomPlane(Stream::attention_weights, 7, 8, 1, 3),
      RandomPlane(Stream::attention_weights, 7, 8, 2, 4),
      RandomPlane(Stream::attention_weights, 7, 8, 3, 2),  // batch and head swapped
      RandomPlane(Stream::attention_weights, 8, 7, 2, 3),  // seed and offset swapped
      RandomPlane(Stream::attention_weights, 7 + (std::uint64_t{1} << 32), 8, 2, 3),
      RandomPlane(Stream::attention_weights, 7, 8 + (std::uint64_t{1} << 32), 2, 3),
  };
  std::set<std::uint32_t> seen;
  for (Index row = 0; row < 8; ++row) {
    for (Index column = 0; column < 8; ++column) seen.insert(base.bits(row, column));
  }
  EXPECT_EQ(seen.size(), 64u);
  for (const RandomPlane& other : others) {
    int equal = 0;
    for (Index row = 0; row < 8; ++row) {
      for (Index column = 0; column < 8; ++column) {
        equal += base.bits(row, column) == other.bits(row, column);
      }
    }
    EXPECT_EQ(equal, 0);
  }
  // Rows and columns beyond 32 bits are not folded.
  const Index far = Index{1} << 40;
  EXPECT_NE(base.bits(far, 0), base.bits(0, 0));
  EXPECT_NE(base.bits(0, far), base.bits(0, 0));
}

TEST(RandomPlane, BitsAreUniform) {
  const RandomPlane plane(Stream::attention_weights, 1, 0, 0, 0);
  const int rows = 200, columns = 200;
  int below[3] = {};
  const double p[3] = {0.1, 0.3, 0.5};
  int ones[32] = {};
  for (Index row = 0; row < rows; ++row) {
    for (Index column = 0; column < columns; ++column) {
      const std::uint32_t bits = plane.bits(row, column);
      for (int i = 0; i < 3; ++i) below[i] += bits < dropout_threshold(p[i]);
      for (int bit = 0; bit < 32; ++bit) ones[bit] += (bits >> bit & 1) != 0;
    }
  }
  const double n = rows * columns;
  // Within five standard deviations of the binomial distribution.
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(below[i], n * p[i], 5 * std::sqrt(n * p[i] * (1 - p[i])));
  for (int bit = 0; bit < 32; ++bit) EXPECT_NEAR(ones[bit], n / 2, 5 * std::sqrt(n / 4));
}

TEST(DropoutThreshold, CountsTheBitPatterns) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.25), std::uint64_t{1} << 30);
  EXPECT_EQ(dropout_threshold(0.5), std::uint64_t{1} << 31);
  EXPECT_EQ(dropout_threshold(1), std::uint64_t{1} << 32);
  EXPECT_EQ(dropout_threshold(0x1p-33), 1u);  // half a pattern rounds up
  EXPECT_EQ(dropout_threshold(0x1p-34), 0u);
}

TEST(UniformSequence, StaysWithinItsLimitAndFillsIt) {
  const UniformSequence sequence(5, 6);
  const double limit = 0.25;
  double sum = 0, low = limit, high = -limit;
  const int n = 10000;
  for (Index i = 0; i < n; ++i) {
    const double x = sequence.at(i, limit);
    EXPECT_GE(x, -limit);
    EXPECT_LT(x, limit);
    sum += x;
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  // Five standard deviations of the mean of n numbers of variance limit^2 / 3.
  EXPECT_NEAR(sum / n, 0, 5 * limit / std::sqrt(3.0 * n));
  EXPECT_LT(low, -0.99 * limit);
  EXPECT_GT(high, 0.99 * limit);
  EXPECT_EQ(sequence.at(3, limit), UniformSequence(5, 6).at(3, limit));
  EXPECT_NE(sequence.at(3, limit), UniformSequence(4, 6).at(3, limit));
  EXPECT_NE(sequence.at(3, limit), UniformSequence(5, 7).at(3, limit));
}

}  // namespace
}  // namespace attn

// Public bug reports: rotary pairs of one convention with weights of the other.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "attn/layers/rotary.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

/// One token of four elements, turned.
std::vector<double> turned(RotaryPairing pairing, std::vector<double> x, Index position) {
  RotaryEmbedding(4, pairing).apply(bhsd(x.data(), {1, 1, 1, 4}), position);
  return x;
}

void expect_elements(const std::vector<double>& actual, const std::vector<double>& expected,
                     double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
  }
}

// The right answers are given to eight or nine digits.
constexpr double kGivenDigits = 5e-9;

// karpathy/nanochat#264: half-split pairs with tables for interleaved ones.
TEST(Rotary, D62PairingIsNamed) {
  const std::vector<double> x = {1, 0, 0, 0};
  expect_elements(turned(RotaryPairing::half_split, x, 1), {0.540302306, 0, 0.841470985, 0},
                  kGivenDigits);
  expect_elements(turned(RotaryPairing::interleaved, x, 1), {0.540302306, 0.841470985, 0, 0},
                  kGivenDigits);
  const std::vector<double> y = {1, 2, 3, 4};
  for (const RotaryPairing pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
    EXPECT_EQ(turned(pairing, y, 0), y);
    // Turned back: two rotations of a pair of length 5 at most, each off by a few epsilons.
    expect_elements(turned(pairing, turned(pairing, y, 1), -1), y, 8 * 5 * 0x1p-52);
  }
}

// huggingface/transformers#39687: the two conventions differ by a permutation of the elements.
TEST(Rotary, D63ConventionsDifferByAPermutation) {
  const std::vector<double> x = {1, 2, 3, 4};
  const auto interleave = [](const std::vector<double>& a) {
    return std::vector<double>{a[0], a[2], a[1], a[3]};  // its own inverse
  };
  const std::vector<double> half = turned(RotaryPairing::half_split, x, 1);
  const std::vector<double> pairs = turned(RotaryPairing::interleaved, x, 1);
  expect_elements(half, {-1.98411065, 1.95990067, 2.4623779, 4.01979967}, kGivenDigits);
  expect_elements(pairs, {-1.14263966, 1.9220756, 2.95985067, 4.0297995}, 5e-8);
  EXPECT_EQ(interleave(turned(RotaryPairing::half_split, interleave(x), 1)), pairs);

  // Scores are the same if queries and keys are both permuted.
  const std::vector<double> key = {0.5, -1, 2, 0.25};
  const auto score = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
  };
  EXPECT_NEAR(score(pairs, turned(RotaryPairing::interleaved, key, 5)),
              score(turned(RotaryPairing::half_split, interleave(x), 1),
                    turned(RotaryPairing::half_split, interleave(key), 5)),
              16 * 0x1p-52 * 5 * 3);  // vectors of length below 6 and 3, a few epsilons
}

}  // namespace
}  // namespace test
}  // namespace attn

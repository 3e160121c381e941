// Rotary embeddings of given frequencies, and LongRoPE: a factor a pair.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/layers/rotary.hpp"
#include "rotary_test/turned.hpp"
#include "support/allocations.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

// The sizes of Phi-3 mini 128k: heads of 96, trained on 4096 positions, stretched to 131072.
constexpr Index kDim = 96, kPairCount = kDim / 2, kTrained = 4096, kLongest = 131072;

/// A factor a pair, growing from 1 as those of published models do.
std::vector<double> pair_factors(double last) {
  std::vector<double> factors;
  for (Index i = 0; i < kPairCount; ++i) {
    factors.push_back(std::pow(last, static_cast<double>(i) / (kPairCount - 1)));
  }
  return factors;
}

RotaryOptions longrope(const std::vector<double>& short_factors,
                       const std::vector<double>& long_factors, Index length) {
  RotaryOptions options;
  options.scaling = RotaryScaling::longrope(short_factors, long_factors,
                                            double{kLongest} / kTrained, kTrained, length);
  return options;
}

/// Holds `rotary` to the formula: pair i turns by p base^(-2 i / dim) / factors[i], and is scaled.
/// All in double: a pair is off by the rounding of its angle, |p| f 2^-52 for the frequency, the
/// product, and a few roundings of the cosine, sine and products.
void expect_formula(const RotaryEmbedding& rotary, double base, const std::vector<double>& factors,
                    double magnitude) {
  for (const Index position : {0, 1, 4095, 4096, 100000, 131071}) {
    TestTensor<double> x({1, 1, 1, kDim}), turned({1, 1, 1, kDim});
    x.fill_uniform(3);
    turned.fill_uniform(3);
    rotary.apply(turned.view(), position);
    for (Index i = 0; i < kPairCount; ++i) {
      const double p = static_cast<double>(position);
      const double f = 1 / (factors[static_cast<std::size_t>(i)] *
                            std::pow(base, 2 * static_cast<double>(i) / kDim));
      const double c = std::cos(p * f), s = std::sin(p * f);
      const double a = x(0, 0, 0, i), b = x(0, 0, 0, i + kPairCount);
      const double bar = magnitude * std::hypot(a, b) * (4 * p * f + 8) * 0x1p-52;
      EXPECT_NEAR(turned(0, 0, 0, i), magnitude * (a * c - b * s), bar) << i << " at " << p;
      EXPECT_NEAR(turned(0, 0, 0, i + kPairCount), magnitude * (b * c + a * s), bar);
    }
  }
}

TEST(LongRope, DividesEachFrequencyByItsFactor) {
  const std::vector<double> short_factors = pair_factors(1.5), long_factors = pair_factors(64);
  // sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5 / 12).
  const double magnitude = std::sqrt(17.0 / 12);
  const RotaryEmbedding of_short(kDim, RotaryPairing::half_split, 10000,
                                 longrope(short_factors, long_factors, kTrained));
  const RotaryEmbedding of_long(kDim, RotaryPairing::half_split, 10000,
                                longrope(short_factors, long_factors, kTrained + 1));
  EXPECT_NEAR(of_short.attention_factor(), magnitude, 1e-15);
  EXPECT_EQ(of_long.attention_factor(), of_short.attention_factor());
  expect_formula(of_short, 10000, short_factors, magnitude);
  expect_formula(of_long, 10000, long_factors, magnitude);
}

TEST(LongRope, TakesAnAttentionFactor) {
  const std::vector<double> factors = pair_factors(2);
  RotaryOptions options = longrope(factors, factors, 1);
  options.scaling.attention_factor = 1.25;
  EXPECT_EQ(RotaryEmbedding(kDim, RotaryPairing::half_split, 500, options).attention_factor(),
            1.25);
  options.scaling.attention_factor.reset();
  options.scaling.factor = 1;  // not stretched: no magnitude
  EXPECT_EQ(RotaryEmbedding(kDim, RotaryPairing::half_split, 500, options).attention_factor(), 1);
}

TEST(LongRope, RefusesWhatMakesNoSense) {
  const auto message = [](const RotaryScaling& scaling) {
    RotaryOptions options;
    options.scaling = scaling;
    return message_of<OptionError>(
        [&] { RotaryEmbedding(4, RotaryPairing::half_split, 10000, options); });
  };
  const std::vector<double> two = {1, 2}, three = {1, 2, 3}, zero = {1, 0},
                            infinite = {std::numeric_limits<double>::infinity(), 1};
  EXPECT_EQ(message(RotaryScaling::longrope(three, two, 4, 16, 64)),
            "RotaryEmbedding: short_factors must hold one number a pair, 2, got 3");
  EXPECT_EQ(message(RotaryScaling::longrope(two, {}, 4, 16, 64)),
            "RotaryEmbedding: long_factors must hold one number a pair, 2, got 0");
  EXPECT_EQ(message(RotaryScaling::longrope(two, zero, 4, 16, 8)),
            "RotaryEmbedding: long_factors must be finite and more than 0, got 0");
  EXPECT_EQ(message(RotaryScaling::longrope(infinite, two, 4, 16, 64)),
            "RotaryEmbedding: short_factors must be finite and more than 0, got inf");
  EXPECT_EQ(message(RotaryScaling::longrope(two, two, 4, 16, 0)),
            "RotaryEmbedding: the length of a scaling must be more than 0, got 0");
  EXPECT_EQ(message(RotaryScaling::longrope(two, two, 4, 1, 64)),
            "RotaryEmbedding: longrope needs an original_length of more than 1, or an "
            "attention_factor");
}

TEST(RotaryFromFrequencies, TurnsEachPairByItsOwn) {
  std::vector<double> frequencies;
  const std::vector<double> factors = pair_factors(64);
  for (Index i = 0; i < kPairCount; ++i) {
    frequencies.push_back(1 / (factors[static_cast<std::size_t>(i)] *
                               std::pow(10000, 2 * static_cast<double>(i) / kDim)));
  }
  const auto rotary =
      RotaryEmbedding::from_frequencies(kDim, RotaryPairing::half_split, frequencies, 1.19);
  EXPECT_EQ(rotary.attention_factor(), 1.19);
  EXPECT_EQ(rotary.rotary_dim(), kDim);
  EXPECT_EQ(rotary.head_dim(), kDim);
  expect_formula(rotary, 10000, factors, 1.19);
}

TEST(RotaryFromFrequencies, OfThePlainRuleHasItsBits) {
  for (const RotaryPairing pairing : kPairings) {
    RotaryOptions options;
    options.rotary_dim = 10;  // the rest of a head is left alone
    const RotaryEmbedding plain(16, pairing, 10000, options);
    const auto same = RotaryEmbedding::from_frequencies(16, pairing, plain.frequencies());
    EXPECT_EQ(same.rotary_dim(), 10);
    TestTensor<float> a({2, 2, 70, 16}), b({2, 2, 70, 16});
    a.fill_uniform(1);
    b.fill_uniform(1);
    plain.apply(a.view(), 1000);
    same.apply(b.view(), 1000);
    EXPECT_TRUE(same_bits(a.view(), b.view()));
    plain.shift(a.view(), -77);
    same.shift(b.view(), -77);
    EXPECT_TRUE(same_bits(a.view(), b.view()));
  }
}

TEST(RotaryFromFrequencies, MayBeZeroOrNegative) {
  const double frequencies[] = {0, -0.5};
  const auto rotary = RotaryEmbedding::from_frequencies(4, RotaryPairing::interleaved, frequencies);
  TestTensor<double> x({1, 1, 1, 4}), turned({1, 1, 1, 4});
  x.fill_uniform(5);
  turned.fill_uniform(5);
  rotary.apply(turned.view(), 3);
  EXPECT_EQ(turned(0, 0, 0, 0), x(0, 0, 0, 0));
  EXPECT_EQ(turned(0, 0, 0, 1), x(0, 0, 0, 1));
  const double a = x(0, 0, 0, 2), b = x(0, 0, 0, 3), c = std::cos(1.5), s = std::sin(1.5);
  EXPECT_NEAR(turned(0, 0, 0, 2), a * c + b * s, 8 * 0x1p-52);
  EXPECT_NEAR(turned(0, 0, 0, 3), b * c - a * s, 8 * 0x1p-52);
}

// Tables of 131072 positions of 48 pairs would take 101 MB.
TEST(RotaryFromFrequencies, TakesLittleMemory) {
  const std::vector<double> frequencies = pair_factors(2);
  allocations().reset();
  const auto rotary =
      RotaryEmbedding::from_frequencies(kDim, RotaryPairing::half_split, frequencies);
  // The frequencies and two tables of 64 positions, each by doubling: less than 4 times its size.
  EXPECT_LE(allocations().bytes.load(), (2u * 4 * 64 + 1) * kPairCount * sizeof(double));
  allocations().reset();
  TestTensor<float> x({1, 1, 1, kDim});
  x.fill_uniform(1);
  const auto before = allocations().count.load();
  rotary.apply(x.view(), kLongest - 1);
  EXPECT_EQ(allocations().count.load(), before);
}

TEST(RotaryFromFrequencies, RefusesWhatMakesNoSense) {
  const std::vector<double> two = {1, 2}, three = {1, 2, 3}, nan = {std::nan("")};
  const auto message = [](Span<const double> frequencies, double factor) {
    return message_of<OptionError>([&] {
      RotaryEmbedding::from_frequencies(5, RotaryPairing::half_split, frequencies, factor);
    });
  };
  const std::string function = "RotaryEmbedding::from_frequencies: ";
  EXPECT_EQ(message(three, 1),
            function + "there must be between 1 and head_dim / 2 frequencies, got 3, head_dim 5");
  EXPECT_EQ(message({}, 1),
            function + "there must be between 1 and head_dim / 2 frequencies, got 0, head_dim 5");
  EXPECT_EQ(message(nan, 1), function + "frequencies must be finite, got nan");
  EXPECT_EQ(message(two, std::nan("")), function + "attention_factor must be finite, got nan");
}

}  // namespace
}  // namespace test
}  // namespace attn

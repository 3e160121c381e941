// The scalings of rotary frequencies, against numbers computed elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "attn/layers/rotary.hpp"
#include "rotary_test/turned.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

void expect_frequencies(const RotaryEmbedding& rotary,
                        const std::vector<std::pair<Index, double>>& expected) {
  for (const auto& [pair, frequency] : expected) {
    EXPECT_NEAR(rotary.frequencies()[pair], frequency, 1e-14 * frequency) << "pair " << pair;
  }
}
RotaryEmbedding scaled(Index dim, double base, const RotaryScaling& scaling) {
  RotaryOptions options;
  options.scaling = scaling;
  return RotaryEmbedding(dim, RotaryPairing::half_split, base, options);
}

// The numbers of the scalings were computed by NumPy in double, from the formulas of the papers
// and of the models' published code; see each source in rotary_scaling.hpp.
TEST(RotaryScaling, LinearDividesFrequencies) {
  const RotaryEmbedding plain(64, RotaryPairing::half_split);
  const RotaryEmbedding linear = scaled(64, 10000, RotaryScaling::linear(4));
  for (Index i = 0; i < 32; ++i) EXPECT_EQ(linear.frequencies()[i], plain.frequencies()[i] / 4);
  EXPECT_EQ(linear.attention_factor(), 1);
}

TEST(RotaryScaling, DynamicNtkStretchesTheBase) {
  const RotaryEmbedding rotary = scaled(64, 10000, RotaryScaling::dynamic_ntk(2, 2048, 6144));
  expect_frequencies(rotary, {{0, 1.0},
                              {1, 0x1.6c855f9f20078p-1},
                              {15, 0x1.911d609bcdb20p-8},
                              {31, 0x1.bf749e693a058p-16}});
  // Up to the trained length nothing changes.
  const RotaryEmbedding plain(64, RotaryPairing::half_split);
  const RotaryEmbedding within = scaled(64, 10000, RotaryScaling::dynamic_ntk(2, 2048, 2048));
  for (Index i = 0; i < 32; ++i) EXPECT_EQ(within.frequencies()[i], plain.frequencies()[i]);
  // The last pair is stretched by factor * length / original_length - factor + 1.
  EXPECT_NEAR(rotary.frequencies()[31] * (2 * 3.0 - 1), plain.frequencies()[31], 1e-17);
}

TEST(RotaryScaling, YarnKeepsFastPairsAndStretchesSlowOnes) {
  const RotaryEmbedding rotary = scaled(64, 10000, RotaryScaling::yarn(4, 4096));
  expect_frequencies(rotary, {{0, 1.0},
                              {8, 0x1.999999999999ap-4},
                              {12, 0x1.ca5370142dd8ep-6},
                              {15, 0x1.36eb74ff31e4dp-7},
                              {18, 0x1.8ce28b161f9dcp-9},
                              {20, 0x1.5eb80e87a66c2p-10},
                              {31, 0x1.17a8e301c4436p-15}});
  EXPECT_NEAR(rotary.attention_factor(), 0.1 * std::log(4.0) + 1, 1e-15);
  // The factor multiplies what is turned.
  TestTensor<float> x({1, 1, 2, 64}), turned({1, 1, 2, 64});
  x.fill_uniform(7);
  turned.fill_uniform(7);
  rotary.apply(turned.view(), 0);
  expect_turned(rotary, x, turned, [](Index, Index i) { return i; });

  RotaryScaling open = RotaryScaling::yarn(32, 4096);
  open.whole_pairs = false;
  open.attention_factor = 1.25;
  const RotaryEmbedding fine = scaled(64, 150000, open);
  expect_frequencies(fine, {{8, 0x1.a04329311f45dp-5},
                            {9, 0x1.03bbaa06b8abdp-5},
                            {12, 0x1.bd5080c93a3a3p-8},
                            {15, 0x1.13eeee679539cp-10},
                            {17, 0x1.0f3372f6a69b3p-13},
                            {18, 0x1.415b8c535b893p-15},
                            {31, 0x1.44a5a6386947dp-22}});
  EXPECT_EQ(fine.attention_factor(), 1.25);
}

TEST(RotaryScaling, Llama3BlendsByWavelength) {
  const RotaryEmbedding rotary = scaled(128, 500000, RotaryScaling::llama3(8, 8192));
  expect_frequencies(rotary, {{0, 1.0},
                              {20, 0x1.0f53852389081p-6},
                              {28, 0x1.a4ee3f0a6907bp-9},
                              {29, 0x1.1bfa0d25be314p-9},
                              {30, 0x1.67a238074c42bp-10},
                              {34, 0x1.765ba6f931578p-13},
                              {35, 0x1.90d10c806f8c1p-14},
                              {36, 0x1.4683197ad3991p-14},
                              {63, 0x1.4985fec80a8cbp-22}});
}

}  // namespace
}  // namespace test
}  // namespace attn

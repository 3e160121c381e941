// Several positions a token: sections of the pairs, each turned by a position of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/layers/rotary.hpp"
#include "attn/thread_pool.hpp"
#include "rotary_test/turned.hpp"
#include "support/element_types.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

// Of Qwen2-VL: heads of 128, sections of pairs for time, row and column.
constexpr Index kQwen[] = {16, 24, 24};

RotaryOptions sections_of(Span<const Index> sections, Index rotary_dim = 0) {
  RotaryOptions options;
  options.sections = sections;
  options.rotary_dim = rotary_dim;
  return options;
}

/// Holds `actual` to x turned pair by pair in double: pair i, of section s, by the angle
/// position(b, i, s) frequency(i).
template <class T, class Position>
void expect_sections(const RotaryEmbedding& rotary, const std::vector<double>& frequencies,
                     const std::vector<Index>& section_of_pair, const TestTensor<T>& x,
                     const TestTensor<T>& actual, const Position& position) {
  const Index pairs = static_cast<Index>(frequencies.size());
  Index failures = 0;
  for_each_index(x.shape(), [&](Index b, Index h, Index i, Index d) {
    if (d >= 2 * pairs) {
      EXPECT_TRUE(same_bits(actual(b, h, i, d), x(b, h, i, d)));
      return;
    }
    if (d >= pairs) return;
    const PairPlace at = place_of(rotary.pairing(), 2 * pairs, d);
    const double p =
        static_cast<double>(position(b, i, section_of_pair[static_cast<std::size_t>(d)]));
    const double angle = p * frequencies[static_cast<std::size_t>(d)];
    const double first = static_cast<double>(x(b, h, i, at.first));
    const double second = static_cast<double>(x(b, h, i, at.second));
    const double expected[] = {first * std::cos(angle) - second * std::sin(angle),
                               second * std::cos(angle) + first * std::sin(angle)};
    const double got[] = {static_cast<double>(actual(b, h, i, at.first)),
                          static_cast<double>(actual(b, h, i, at.second))};
    for (int side = 0; side < 2; ++side) {
      // The documented bound, and as much for the angle and the products of this test.
      const double bar = std::hypot(first, second) * 0x1p-50 * (1 + std::abs(p)) +
                         static_cast<double>(epsilon<T>()) / 2 * std::abs(expected[side]) +
                         static_cast<double>((std::numeric_limits<T>::denorm_min)()) / 2;
      if (!(std::abs(got[side] - expected[side]) <= bar) && ++failures < 4) {
        ADD_FAILURE() << "pair " << d << " at " << p << ": " << got[side] << " instead of "
                      << expected[side];
      }
    }
  });
}

std::vector<double> plain_frequencies(Index dim, double base) {
  std::vector<double> frequencies;
  for (Index i = 0; i < dim / 2; ++i) {
    frequencies.push_back(std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(dim)));
  }
  return frequencies;
}
std::vector<Index> section_of_pair(Span<const Index> sections) {
  std::vector<Index> all;
  for (Index s = 0; s < sections.size(); ++s) {
    for (Index i = 0; i < sections[s]; ++i) all.push_back(s);
  }
  return all;
}

template <class T>
class RotarySections : public ::testing::Test {};
TYPED_TEST_SUITE(RotarySections, ElementTypes, TypeNames);

TYPED_TEST(RotarySections, TurnEachByItsPosition) {
  using T = TypeParam;
  for (const RotaryPairing pairing : kPairings) {
    const RotaryEmbedding rotary(128, pairing, 1000000, sections_of(kQwen));
    ASSERT_EQ(rotary.sections().size(), 3);
    EXPECT_EQ(rotary.sections()[1], 24);
    for (const Index batch : {1, 2}) {
      TestTensor<std::int64_t> positions({batch, 1, 70, 3}, Layout::permuted);
      positions.fill([](Index b, Index, Index i, Index s) {
        return s == 0 ? 3 * b - 5 : s == 1 ? 1000 * b + i / 8 : 131000 - i % 8 + 4 * b;
      });
      TestTensor<T> x({2, 2, 70, 128}, Layout::bshd), turned({2, 2, 70, 128}, Layout::bshd);
      x.fill_uniform(1, 2);
      turned.fill_uniform(1, 2);
      rotary.apply(turned.view(), positions.view());
      expect_sections(
          rotary, plain_frequencies(128, 1000000), section_of_pair(kQwen), x, turned,
          [&](Index b, Index i, Index s) { return positions(batch == 1 ? 0 : b, 0, i, s); });
    }
  }
}

// Text after an image: all sections stand at one position.
TEST(RotarySectionsOfText, HaveTheBitsOfOneSection) {
  const RotaryEmbedding sections(128, RotaryPairing::half_split, 10000, sections_of(kQwen));
  const RotaryEmbedding one(128, RotaryPairing::half_split, 10000);
  ASSERT_EQ(one.sections().size(), 1);
  EXPECT_EQ(one.sections()[0], 64);
  TestTensor<float> expected({2, 3, 80, 128}), x({2, 3, 80, 128});
  expected.fill_uniform(1);
  one.apply(expected.view(), 1000);
  TestTensor<std::int32_t> positions({1, 1, 80, 1}), three({2, 1, 80, 3});
  positions.fill([](Index, Index, Index i, Index) { return 1000 + i; });
  three.fill([](Index, Index, Index i, Index) { return 1000 + i; });
  x.fill_uniform(1);
  sections.apply(x.view(), 1000);
  EXPECT_TRUE(same_bits(x.view(), expected.view()));
  x.fill_uniform(1);
  sections.apply(x.view(), positions.view());
  EXPECT_TRUE(same_bits(x.view(), expected.view()));
  x.fill_uniform(1);
  ThreadPool pool(3);
  sections.apply(x.view(), three.view(), &pool);
  EXPECT_TRUE(same_bits(x.view(), expected.view()));
  one.shift(expected.view(), -300);
  sections.shift(x.view(), -300);
  EXPECT_TRUE(same_bits(x.view(), expected.view()));
}

// Of a vision tower: half of the pairs turn by the row of a patch, half by its column, with the
// same frequencies; a part of each head is left alone.
TEST(RotarySectionsOfPatches, TurnByRowAndColumn) {
  constexpr Index kTurned = 20, kHeadDim = 24, kWidth = 5;
  std::vector<double> frequencies = plain_frequencies(kTurned / 2, 100);
  frequencies.insert(frequencies.end(), frequencies.begin(), frequencies.begin() + kTurned / 4);
  const Index sections[] = {kTurned / 4, kTurned / 4};
  for (const RotaryPairing pairing : kPairings) {
    const auto rotary =
        RotaryEmbedding::from_frequencies(kHeadDim, pairing, frequencies, 1, sections);
    TestTensor<std::int32_t> positions({1, 1, 35, 2});
    positions.fill([](Index, Index, Index i, Index s) { return s == 0 ? i / kWidth : i % kWidth; });
    TestTensor<float> x({2, 2, 35, kHeadDim}), turned({2, 2, 35, kHeadDim});
    x.fill_uniform(1);
    turned.fill_uniform(1);
    rotary.apply(turned.view(), positions.view());
    expect_sections(rotary, frequencies, section_of_pair(sections), x, turned,
                    [](Index, Index i, Index s) { return s == 0 ? i / kWidth : i % kWidth; });
  }
}

// A section at position 0 keeps its bits, whatever the others do; a section may have no pairs.
TEST(RotarySections, LeaveWhatStandsAtZero) {
  const Index sections[] = {2, 0, 1};
  const RotaryEmbedding rotary(6, RotaryPairing::interleaved, 10000, sections_of(sections));
  const std::int32_t at[] = {0, 7, 5};
  const float infinite = std::numeric_limits<float>::infinity();
  float x[] = {-0.0f, infinite, 1, -infinite, 3, 4};
  rotary.apply(Tensor4<float>(x, {1, 1, 1, 6}), Tensor4<const std::int32_t>(at, {1, 1, 1, 3}));
  EXPECT_TRUE(same_bits(x[0], -0.0f));
  EXPECT_EQ(x[1], infinite);
  EXPECT_EQ(x[2], 1);
  EXPECT_EQ(x[3], -infinite);
  const double angle = 5 * std::pow(10000, -4.0 / 6);
  EXPECT_NEAR(x[4], 3 * std::cos(angle) - 4 * std::sin(angle), 0x1p-22);
  EXPECT_NEAR(x[5], 4 * std::cos(angle) + 3 * std::sin(angle), 0x1p-22);
}

TEST(RotarySections, TakeAnyPosition) {
  const Index sections[] = {1, 1};
  const RotaryEmbedding rotary(4, RotaryPairing::half_split, 10000, sections_of(sections));
  const std::int64_t at[] = {(std::numeric_limits<std::int64_t>::min)(),
                             (std::numeric_limits<std::int64_t>::max)()};
  double x[] = {1, 1, 0, 0};
  rotary.apply(Tensor4<double>(x, {1, 1, 1, 4}), Tensor4<const std::int64_t>(at, {1, 1, 1, 2}));
  for (Index i = 0; i < 2; ++i) EXPECT_NEAR(std::hypot(x[i], x[i + 2]), 1, 0x1p-50);
}

TEST(RotarySections, RefuseWhatDoesNotFit) {
  const auto message = [](Span<const Index> sections) {
    return message_of<OptionError>(
        [&] { RotaryEmbedding(8, RotaryPairing::half_split, 10000, sections_of(sections)); });
  };
  const Index few[] = {1, 2}, many[] = {3, 2}, negative[] = {5, -1},
              huge[] = {4, (std::numeric_limits<Index>::max)()};
  const std::string rule = "RotaryEmbedding: sections must be 0 or more, and together the 4 pairs";
  EXPECT_EQ(message(few), rule + "; got 1 2");
  EXPECT_EQ(message(many), rule + "; got 3 2");
  EXPECT_EQ(message(negative), rule + "; got 5 -1");
  EXPECT_EQ(message(huge), rule + "; got 4 9223372036854775807");
  EXPECT_EQ(message_of<OptionError>([&] {
              const double frequencies[] = {1, 1};
              RotaryEmbedding::from_frequencies(8, RotaryPairing::half_split, frequencies, 1, few);
            }),
            "RotaryEmbedding::from_frequencies: sections must be 0 or more, and together the 2 "
            "pairs; got 1 2");

  const Index fit[] = {1, 2, 1};
  const RotaryEmbedding rotary(8, RotaryPairing::half_split, 10000, sections_of(fit));
  TestTensor<float> x({2, 1, 3, 8});
  TestTensor<std::int32_t> two({2, 1, 3, 2}), one_more({2, 1, 4, 3});
  const std::string shapes =
      "RotaryEmbedding::apply: positions must be [batch of x or 1, 1, length of x, 1 or the 3 "
      "sections of the rotary embedding]; got x [2, 1, 3, 8], positions ";
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(x.view(), two.view()); }),
            shapes + "[2, 1, 3, 2]");
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(x.view(), one_more.view()); }),
            shapes + "[2, 1, 4, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(x.view(), TokenPositions()); }),
            shapes + "[0, 0, 0, 0]");
  EXPECT_TRUE(x.is_untouched());
}

}  // namespace
}  // namespace test
}  // namespace attn

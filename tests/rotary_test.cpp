#include "attn/layers/rotary.hpp"
#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr RotaryPairing kPairings[] = {RotaryPairing::half_split, RotaryPairing::interleaved};

/// Where the elements of pair i lie.
struct PairPlace {
  Index first, second;
};
PairPlace place_of(RotaryPairing pairing, Index rotary_dim, Index i) {
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

template <class T>
class Rotary : public ::testing::Test {};
using AllTypes = ::testing::Types<double, float, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Rotary, AllTypes, TypeNames);

TYPED_TEST(Rotary, TurnsByTheBookAtEveryPosition) {
  using T = TypeParam;
  for (const RotaryPairing pairing : kPairings) {
    for (const Index head_dim : {2, 6, 64, 130, 258}) {
      SCOPED_TRACE(head_dim);
      const RotaryEmbedding rotary(head_dim, pairing, 500);
      TestTensor<T> x({2, 3, 70, head_dim}), turned = TestTensor<T>({2, 3, 70, head_dim});
      x.fill_uniform(1, 8);
      turned.fill_uniform(1, 8);
      const std::vector<std::int32_t> first = {-3, 1000000};
      rotary.apply(turned.view(), first);
      expect_turned(rotary, x, turned, [&](Index b, Index i) {
        return static_cast<Index>(first[static_cast<std::size_t>(b)]) + i;
      });
    }
  }
}

TYPED_TEST(Rotary, LeavesEveryBitAtPositionZero) {
  using T = TypeParam;
  for (const RotaryPairing pairing : kPairings) {
    const RotaryEmbedding rotary(8, pairing);
    TestTensor<T> x({1, 1, 1, 8}), turned({1, 1, 1, 8});
    const T values[] = {T(-0.0f), -T(1), infinity<T>(),  quiet_nan<T>(),
                        T(0),     T(3),  -infinity<T>(), (std::numeric_limits<T>::denorm_min)()};
    x.fill([&](Index, Index, Index, Index d) { return values[d]; });
    turned.fill([&](Index, Index, Index, Index d) { return values[d]; });
    rotary.apply(turned.view(), 0);
    EXPECT_TRUE(same_bits(turned.view(), x.view()));
  }
}

TEST(RotaryEmbedding, TurnsThePairsOfItsName) {
  // cos 1 = 0.5403, sin 1 = 0.8415; the second pair turns by 1 / 100.
  TestTensor<double> half({1, 1, 1, 4}), interleaved({1, 1, 1, 4});
  for (TestTensor<double>* x : {&half, &interleaved}) {
    x->fill([](Index, Index, Index, Index d) { return d + 1; });
  }
  RotaryEmbedding(4, RotaryPairing::half_split).apply(half.view(), 1);
  RotaryEmbedding(4, RotaryPairing::interleaved).apply(interleaved.view(), 1);
  const double c = std::cos(1.0), s = std::sin(1.0), c2 = std::cos(0.01), s2 = std::sin(0.01);
  const double by_half[] = {c - 3 * s, 2 * c2 - 4 * s2, 3 * c + s, 4 * c2 + 2 * s2};
  const double by_neighbour[] = {c - 2 * s, 2 * c + s, 3 * c2 - 4 * s2, 4 * c2 + 3 * s2};
  for (Index d = 0; d < 4; ++d) {
    EXPECT_NEAR(half(0, 0, 0, d), by_half[d], 1e-15);
    EXPECT_NEAR(interleaved(0, 0, 0, d), by_neighbour[d], 1e-15);
  }
}

TEST(RotaryEmbedding, TurnsTheFirstDimsAlone) {
  for (const RotaryPairing pairing : kPairings) {
    RotaryOptions options;
    options.rotary_dim = 10;
    const RotaryEmbedding rotary(16, pairing, 10000, options);
    EXPECT_EQ(rotary.rotary_dim(), 10);
    EXPECT_EQ(rotary.head_dim(), 16);
    EXPECT_EQ(rotary.frequencies().size(), 5);
    EXPECT_NEAR(rotary.frequencies()[1], std::pow(10000, -0.2), 1e-15);  // of rotary_dim
    TestTensor<float> x({1, 2, 9, 16}), turned({1, 2, 9, 16});
    x.fill_uniform(2);
    turned.fill_uniform(2);
    rotary.apply(turned.view(), 5);
    expect_turned(rotary, x, turned, [](Index, Index i) { return 5 + i; });
  }
}

TEST(RotaryEmbedding, TheSamePositionGivesTheSameBits) {
  const RotaryEmbedding rotary(32, RotaryPairing::half_split);
  TestTensor<float> all({1, 2, 200, 32});
  all.fill_uniform(3);
  rotary.apply(all.view(), 40);
  for (const Layout layout : kAllLayouts) {
    for (const Index chunk : {1, 7, 64}) {
      TestTensor<float> x({1, 2, 200, 32}, layout);
      x.fill_uniform(3);
      for (Index i = 0; i < 200; i += chunk) {
        rotary.apply(x.view().slice_length(i, (std::min)(chunk, 200 - i)), 40 + i);
      }
      EXPECT_TRUE(same_bits(x.view(), all.view()));
      EXPECT_TRUE(x.gaps_are_untouched());
    }
  }
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    TestTensor<float> x({1, 2, 200, 32});
    x.fill_uniform(3);
    rotary.apply(x.view(), 40, &pool);
    EXPECT_TRUE(same_bits(x.view(), all.view()));
  }
}

TEST(RotaryEmbedding, TakesAnyPositions) {
  const RotaryEmbedding rotary(6, RotaryPairing::interleaved);
  TestTensor<std::int64_t> positions({2, 1, 4, 1}, Layout::inner_stride);
  positions.fill([](Index b, Index, Index i, Index) { return b == 0 ? 3 : 1000 * i - 1; });
  TestTensor<float> x({2, 2, 4, 6}), turned({2, 2, 4, 6});
  x.fill_uniform(4);
  turned.fill_uniform(4);
  rotary.apply(turned.view(), positions.view());
  expect_turned(rotary, x, turned, [&](Index b, Index i) { return positions(b, 0, i, 0); });

  const std::int32_t shared[] = {7, 5, 5, 0};
  turned.fill_uniform(4);
  rotary.apply(turned.view(), Tensor4<const std::int32_t>(shared, {1, 1, 4, 1}));
  expect_turned(rotary, x, turned, [&](Index, Index i) { return shared[i]; });
}

TEST(RotaryEmbedding, TurningBackRestores) {
  for (const RotaryPairing pairing : kPairings) {
    const RotaryEmbedding rotary(64, pairing);
    TestTensor<double> x({1, 1, 1, 64}), turned({1, 1, 1, 64});
    x.fill_uniform(5);
    turned.fill_uniform(5);
    rotary.apply(turned.view(), 12345);
    rotary.apply(turned.view(), -12345);
    for (Index d = 0; d < 64; ++d) EXPECT_NEAR(turned(0, 0, 0, d), x(0, 0, 0, d), 1e-11);
  }
}

// The two pairings are one rotation of permuted elements.
TEST(RotaryEmbedding, PairingsAreConjugate) {
  const RotaryEmbedding half(10, RotaryPairing::half_split),
      interleaved(10, RotaryPairing::interleaved);
  TestTensor<float> a({1, 1, 3, 10}), b({1, 1, 3, 10});
  a.fill_uniform(6);
  for (Index i = 0; i < 3; ++i) {
    for (Index d = 0; d < 5; ++d) {
      b(0, 0, i, 2 * d) = a(0, 0, i, d);
      b(0, 0, i, 2 * d + 1) = a(0, 0, i, d + 5);
    }
  }
  half.apply(a.view(), 11);
  interleaved.apply(b.view(), 11);
  for (Index i = 0; i < 3; ++i) {
    for (Index d = 0; d < 5; ++d) {
      EXPECT_TRUE(same_bits(b(0, 0, i, 2 * d), a(0, 0, i, d)));
      EXPECT_TRUE(same_bits(b(0, 0, i, 2 * d + 1), a(0, 0, i, d + 5)));
    }
  }
}

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

TEST(RotaryEmbedding, TurnsByGivenTables) {
  // Not of one angle: nobody promises that cos^2 + sin^2 = 1.
  TestTensor<float> cosines({1, 1, 5, 3}, Layout::permuted), sines({1, 1, 5, 3});
  cosines.fill_uniform(8);
  sines.fill_uniform(9);
  for (const RotaryPairing pairing : kPairings) {
    const RotaryEmbedding rotary =
        RotaryEmbedding::from_tables(8, pairing, cosines.view(), sines.view());
    EXPECT_EQ(rotary.rotary_dim(), 6);
    EXPECT_TRUE(rotary.frequencies().empty());
    TestTensor<float> x({1, 1, 2, 8}), turned({1, 1, 2, 8});
    x.fill_uniform(10);
    turned.fill_uniform(10);
    const std::int64_t positions[] = {4, 0};
    rotary.apply(turned.view(), Tensor4<const std::int64_t>(positions, {1, 1, 2, 1}));
    for (Index i = 0; i < 2; ++i) {
      for (Index pair = 0; pair < 3; ++pair) {
        const PairPlace at = place_of(pairing, 6, pair);
        const Index p = positions[i];
        const double c = static_cast<double>(cosines(0, 0, p, pair));
        const double s = static_cast<double>(sines(0, 0, p, pair));
        const double a = static_cast<double>(x(0, 0, i, at.first));
        const double b = static_cast<double>(x(0, 0, i, at.second));
        EXPECT_EQ(turned(0, 0, i, at.first), static_cast<float>(a * c - b * s));
        EXPECT_EQ(turned(0, 0, i, at.second), static_cast<float>(b * c + a * s));
      }
      EXPECT_EQ(turned(0, 0, i, 6), x(0, 0, i, 6));
      EXPECT_EQ(turned(0, 0, i, 7), x(0, 0, i, 7));
    }
    for (const Index outside : {-1, 4}) {
      TestTensor<float> untouched({1, 1, 2, 8});
      EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(untouched.view(), outside); }),
                "RotaryEmbedding::apply: position " + std::to_string(outside == 4 ? 5 : -1) +
                    " does not lie within the 5 of the given tables; got x [1, 1, 2, 8]");
      EXPECT_TRUE(untouched.is_untouched());
    }
  }
  EXPECT_EQ(message_of<ShapeError>([&] {
              RotaryEmbedding::from_tables(8, RotaryPairing::half_split, cosines.view(),
                                           sines.view().slice_length(0, 4));
            }),
            "RotaryEmbedding::from_tables: cosines and sines must be [1, 1, positions, rotary_dim "
            "/ 2] both; got cosines [1, 1, 5, 3], sines [1, 1, 4, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              RotaryEmbedding::from_tables(5, RotaryPairing::half_split, cosines.view(),
                                           sines.view());
            }),
            "RotaryEmbedding::from_tables: cosines and sines must have between 1 and head_dim / 2 "
            "columns, head_dim 5; got cosines [1, 1, 5, 3], sines [1, 1, 5, 3]");
}

TEST(RotaryEmbedding, RefusesWhatMakesNoSense) {
  const auto message = [](Index head_dim, double base, const RotaryOptions& options = {}) {
    return message_of<OptionError>(
        [&] { RotaryEmbedding(head_dim, RotaryPairing::half_split, base, options); });
  };
  const auto with = [](const RotaryScaling& scaling) {
    RotaryOptions options;
    options.scaling = scaling;
    return options;
  };
  RotaryOptions options;
  EXPECT_EQ(message(7, 10000),
            "RotaryEmbedding: rotary_dim must be even, more than 0 and at most head_dim, got "
            "rotary_dim 7, head_dim 7");
  EXPECT_EQ(message(0, 10000),
            "RotaryEmbedding: rotary_dim must be even, more than 0 and at most head_dim, got "
            "rotary_dim 0, head_dim 0");
  options.rotary_dim = 10;
  EXPECT_EQ(message(8, 10000, options),
            "RotaryEmbedding: rotary_dim must be even, more than 0 and at most head_dim, got "
            "rotary_dim 10, head_dim 8");
  EXPECT_EQ(message(8, 0), "RotaryEmbedding: base must be finite and more than 0, got 0");
  EXPECT_EQ(message(8, std::nan("")),
            "RotaryEmbedding: base must be finite and more than 0, got nan");
  EXPECT_EQ(message(8, 10000, with(RotaryScaling::linear(0))),
            "RotaryEmbedding: the factor of a scaling must be finite and more than 0, got 0");
  EXPECT_EQ(message(8, 10000, with(RotaryScaling::yarn(2, 0))),
            "RotaryEmbedding: the original_length of a scaling must be more than 0, got 0");
  EXPECT_EQ(message(8, 10000, with(RotaryScaling::dynamic_ntk(2, 4, 0))),
            "RotaryEmbedding: the length of a scaling must be more than 0, got 0");
  EXPECT_EQ(message(8, 1, with(RotaryScaling::yarn(2, 4))),
            "RotaryEmbedding: yarn needs a base of more than 1, got 1");
  RotaryScaling yarn = RotaryScaling::yarn(2, 4);
  yarn.beta_fast = 0.5;
  EXPECT_EQ(message(8, 10000, with(yarn)),
            "RotaryEmbedding: yarn needs beta_fast >= beta_slow > 0, got 0.5 and 1");
  yarn = RotaryScaling::yarn(2, 4);
  yarn.attention_factor = std::nan("");
  EXPECT_EQ(message(8, 10000, with(yarn)), "RotaryEmbedding: attention_factor must be finite");
  EXPECT_EQ(message(8, 10000, with(RotaryScaling::llama3(8, 8192, 4, 4))),
            "RotaryEmbedding: llama3 needs high_frequency_factor > low_frequency_factor, got "
            "4 and 4");
}

TEST(RotaryEmbedding, RefusesTensorsThatDoNotFit) {
  const RotaryEmbedding rotary(8, RotaryPairing::half_split);
  TestTensor<float> x({2, 1, 3, 6}), fits({2, 1, 3, 8});
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(x.view(), 0); }),
            "RotaryEmbedding::apply: x must have the head_dim of the embedding, 8; got x "
            "[2, 1, 3, 6]");
  const std::vector<Index> three = {1, 2, 3};
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(fits.view(), three); }),
            "RotaryEmbedding::apply: first_position must hold one number, or one each batch of x, "
            "got 3; got x [2, 1, 3, 8]");
  TestTensor<std::int64_t> positions({2, 1, 2, 1});
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(fits.view(), positions.view()); }),
            "RotaryEmbedding::apply: positions must be [batch of x or 1, 1, length of x, 1]; got "
            "x [2, 1, 3, 8], positions [2, 1, 2, 1]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              rotary.apply(Tensor4<float>(nullptr, {1, 1, 1, 8}), 0);
            }),
            "RotaryEmbedding::apply: x is not empty, but its pointer is null; got x [1, 1, 1, 8]");
  EXPECT_TRUE(x.is_untouched());
  EXPECT_TRUE(fits.is_untouched());
  rotary.apply(Tensor4<float>(nullptr, {2, 0, 3, 8}), 0);  // nothing to do
}

TEST(RotaryEmbedding, ServesManyThreads) {
  const RotaryEmbedding rotary(64, RotaryPairing::half_split);
  TestTensor<float> expected({1, 1, 100, 64});
  expected.fill_uniform(11);
  rotary.apply(expected.view(), 3);
  std::vector<std::thread> threads;
  for (int caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&] {
      for (int call = 0; call < 20; ++call) {
        TestTensor<float> x({1, 1, 100, 64});
        x.fill_uniform(11);
        rotary.apply(x.view(), 3);
        EXPECT_TRUE(same_bits(x.view(), expected.view()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace test
}  // namespace attn

// RotaryEmbedding held to its formula: pairings, positions, tables, bits, errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
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

template <class T>
class Rotary : public ::testing::Test {};
TYPED_TEST_SUITE(Rotary, ElementTypes, TypeNames);

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
  const auto with = [](const RotaryScaling& scaling) {
    RotaryOptions options;
    options.scaling = scaling;
    return options;
  };
  RotaryOptions ten;
  ten.rotary_dim = 10;
  RotaryScaling swapped = RotaryScaling::yarn(2, 4), no_factor = swapped;
  swapped.beta_fast = 0.5;
  no_factor.attention_factor = std::nan("");
  const std::string dim = "rotary_dim must be even, more than 0 and at most head_dim, got ",
                    base = "base must be finite and more than 0, got ";
  struct Case {
    Index head_dim;
    double base;
    RotaryOptions options;
    std::string rule;
  };
  for (const Case& c : std::vector<Case>{
           {7, 10000, {}, dim + "rotary_dim 7, head_dim 7"},
           {0, 10000, {}, dim + "rotary_dim 0, head_dim 0"},
           {8, 10000, ten, dim + "rotary_dim 10, head_dim 8"},
           {8, 0, {}, base + "0"},
           {8, std::nan(""), {}, base + "nan"},
           {8, 10000, with(RotaryScaling::linear(0)),
            "the factor of a scaling must be finite and more than 0, got 0"},
           {8, 10000, with(RotaryScaling::yarn(2, 0)),
            "the original_length of a scaling must be more than 0, got 0"},
           {8, 10000, with(RotaryScaling::dynamic_ntk(2, 4, 0)),
            "the length of a scaling must be more than 0, got 0"},
           {8, 1, with(RotaryScaling::yarn(2, 4)), "yarn needs a base of more than 1, got 1"},
           {8, 10000, with(swapped), "yarn needs beta_fast >= beta_slow > 0, got 0.5 and 1"},
           {8, 10000, with(no_factor), "attention_factor must be finite"},
           {8, 10000, with(RotaryScaling::llama3(8, 8192, 4, 4)),
            "llama3 needs high_frequency_factor > low_frequency_factor, got 4 and 4"},
       }) {
    EXPECT_EQ(message_of<OptionError>([&] {
                RotaryEmbedding(c.head_dim, RotaryPairing::half_split, c.base, c.options);
              }),
              "RotaryEmbedding: " + c.rule);
  }
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

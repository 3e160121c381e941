// Each mask held to its formula, on small tiles of every shape.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/tiles.hpp"
#include "support/formula.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::changes;
using test::Formula;
using test::keeps;
using test::TestTensor;

const Shapes kSmall[] = {{1, 2, 4, 6, 2},  {2, 1, 5, 5, 0}, {1, 3, 3, 7, 4}, {1, 2, 6, 4, -2},
                         {1, 1, 1, 8, 7},  {2, 2, 3, 1, 0}, {1, 1, 7, 5, 3}, {1, 2, 4, 5, -9},
                         {1, 2, 4, 5, 30}, {3, 4, 1, 5, 4}};

TEST(Masks, NoMaskKeepsAll) {
  for (const Shapes& s : kSmall) check_mask(no_mask(), Formula{}, s, true);
}

TEST(Masks, CausalKeepsKeysUpToThePosition) {
  for (const Shapes& s : kSmall) {
    const Formula formula =
        keeps([s](Index, Index, Index i, Index j) { return j <= i + s.offset; });
    check_mask(causal(), formula, s, true);
    check_mask(causal_top_left(), formula, s, true);
    check_mask(causal_bottom_right(), formula, s, true);
    check_mask(causal_from(s.offset), formula, s, true);
  }
}

TEST(Masks, SlidingWindowCountsBothEnds) {
  const Index far = kUnlimited - 1;  // no sum may overflow
  const std::vector<std::pair<Index, Index>> windows = {
      {0, 0},   {1, 0},          {0, 1},          {2, 1},
      {1, 3},   {kUnlimited, 0}, {0, kUnlimited}, {kUnlimited, kUnlimited},
      {far, 2}, {2, far}};
  for (const auto& [left, right] : windows) {
    for (const Shapes& s : kSmall) {
      const Formula formula = keeps([s, l = left, r = right](Index, Index, Index i, Index j) {
        const Index p = i + s.offset;
        return (l >= 1000 || j >= p - l) && (r >= 1000 || j <= p + r);
      });
      check_mask(sliding_window(left, right), formula, s, true);
    }
  }
}

TEST(Masks, KeyLengthsKeepTheFirstKeysOfEachBatch) {
  for (const Shapes& s : kSmall) {
    const std::vector<std::int32_t> lengths = {static_cast<std::int32_t>(s.keys / 2), 0,
                                               static_cast<std::int32_t>(s.keys)};
    const Formula formula = keeps(
        [&](Index b, Index, Index, Index j) { return j < lengths[static_cast<std::size_t>(b)]; });
    check_mask(key_lengths(lengths), formula, s, true);
    check_mask(key_lengths(1), keeps([](Index, Index, Index, Index j) { return j < 1; }), s, true);
  }
}

TEST(Masks, DenseMasksBroadcastInEveryLayout) {
  for (const test::Layout layout : test::kAllLayouts) {
    for (const Shape4& shape : broadcast_shapes(kDistinct)) {
      TestTensor<std::uint8_t> bytes(shape, layout);
      TestTensor<bool> bools(shape, layout);
      const auto draw = [&](Index b, Index h, Index i, Index j) {
        return test::uniform(5, test::linear_index(shape, b, h, i, j)) < 0.2;
      };
      // Any byte that is not zero is true.
      bytes.fill(
          [&](Index b, Index h, Index i, Index j) { return draw(b, h, i, j) ? 1 + j * 80 : 0; });
      bools.fill(draw);
      const auto is_true = [&](Index b, Index h, Index i, Index j) {
        return broadcast_at(bools, b, h, i, j);
      };
      const auto is_false = [&](Index b, Index h, Index i, Index j) {
        return !is_true(b, h, i, j);
      };
      check_mask(keep_where(bytes.view()), keeps(is_true), kDistinct, false);
      check_mask(drop_where(bools.view()), keeps(is_false), kDistinct, false);
    }
  }
  // The other two combinations share their code with these: one shape each.
  TestTensor<bool> bools({1, 3, 4, 5});
  bools.fill([](Index, Index h, Index i, Index j) { return (h + i * j) % 3 == 0; });
  const auto is_true = [&](Index, Index h, Index i, Index j) { return bools(0, h, i, j); };
  check_mask<double>(keep_where(bools.view()), keeps(is_true), kDistinct, false);
}

template <class T>
void check_biases() {
  for (const Shape4& shape : broadcast_shapes(kDistinct)) {
    const TestTensor<T> bias = random_bias<T>(shape, test::Layout::mixed);
    check_mask<float>(add_bias(bias.view()), formula_of(bias), kDistinct, false);
    check_mask<double>(add_bias(bias.view()), formula_of(bias), kDistinct, false);
  }
}
TEST(Masks, BiasesOfFloatAreAdded) { check_biases<float>(); }
TEST(Masks, BiasesOfDoubleAreAdded) { check_biases<double>(); }
TEST(Masks, BiasesOfHalfAreAdded) { check_biases<Eigen::half>(); }
TEST(Masks, BiasesOfBfloat16AreAdded) { check_biases<Eigen::bfloat16>(); }

TEST(Masks, AFiniteBiasNeverDropsAndMinusInfinityDropsEvenNan) {
  const double lowest = std::numeric_limits<double>::lowest();
  TestTensor<double> bias({1, 1, 1, 5});
  const double values[] = {lowest, -1e39, -std::numeric_limits<double>::infinity(), 1e39, -0.0};
  bias.fill([&](Index, Index, Index, Index j) { return values[j]; });
  const RowBlock row{0, 1, 0, 1, 0, 0, 1};
  float scores[5] = {1e30f, 2, std::numeric_limits<float>::quiet_NaN(), 3, 4};
  const ScoreTile<float> tile{row, {0, 5}, scores, 5, 1, InstructionSet::best};
  const BiasMask mask = add_bias(bias.view());
  mask.modify(tile);
  mask.apply(tile);
  const float most = (std::numeric_limits<float>::max)();
  EXPECT_EQ(scores[0], -most);  // clamped to float's range before it is added
  EXPECT_EQ(scores[1], -most);
  EXPECT_TRUE(is_dropped(scores[2])) << "its score was NaN";
  EXPECT_EQ(scores[3], most);
  EXPECT_EQ(scores[4], 4);

  for (Index j = 0; j < 5; ++j) EXPECT_EQ(mask.allows({0, 0, 0, j, 0}), j != 2);

  // Whatever later masks make of a dropped score, it stays dropped.
  scores[2] = 7;
  mask.reapply(tile);
  EXPECT_TRUE(is_dropped(scores[2]));
}

TEST(Masks, AlibiFallsWithTheDistance) {
  const std::vector<double> slopes = {0.5, 0.25, 2, 0.125};
  for (const Shapes& s : kSmall) {
    const Span<const double> first(slopes.data(), s.heads);
    check_mask(alibi(first), changes([&](auto score, Index, Index h, Index i, Index j) {
                 using A = decltype(score);
                 const A slope = static_cast<A>(slopes[static_cast<std::size_t>(h)]);
                 return score - slope * static_cast<A>(std::abs(i + s.offset - j));
               }),
               s, true);
    // The default slopes depend on the number of heads of the call, not of the group.
    const std::vector<double> standard = alibi_slopes(s.heads);
    check_mask<double>(alibi(), changes([&](auto score, Index, Index h, Index i, Index j) {
                         using A = decltype(score);
                         const A slope = static_cast<A>(standard[static_cast<std::size_t>(h)]);
                         return score - slope * static_cast<A>(std::abs(i + s.offset - j));
                       }),
                       s, true);
  }
}

TEST(AlibiSlopes, FollowThePaper) {
  EXPECT_EQ(alibi_slopes(0), (std::vector<double>{}));
  EXPECT_EQ(alibi_slopes(1), (std::vector<double>{0x1p-8}));
  EXPECT_EQ(alibi_slopes(2), (std::vector<double>{0x1p-4, 0x1p-8}));
  EXPECT_EQ(alibi_slopes(8),
            (std::vector<double>{0x1p-1, 0x1p-2, 0x1p-3, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8}));
  EXPECT_EQ(alibi_slopes(3), (std::vector<double>{0.0625, 0.00390625, 0.25}));
  EXPECT_EQ(alibi_slopes(6), (std::vector<double>{.25, .0625, .015625, .00390625, .5, .125}));
  const std::vector<double> twelve = alibi_slopes(12);
  ASSERT_EQ(twelve.size(), 12u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(twelve[i], std::exp2(-1.0 - double(i)));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(twelve[8 + i], std::exp2(-0.5 - double(i)), 1e-15);
  }
}

TEST(Masks, LambdasSeeTheirPosition) {
  for (const Shapes& s : kSmall) {
    const auto rule = [](Index b, Index h, Index i, Index j, Index p) {
      return (b + 2 * h + 3 * i + 5 * j + 7 * p) % 4 != 0;
    };
    const auto predicate = [rule](ScorePosition at) {
      return rule(at.batch, at.head, at.query, at.key, at.query_position);
    };
    const auto allowed = [&](Index b, Index h, Index i, Index j) {
      return rule(b, h, i, j, i + s.offset);
    };
    const auto dropped = [&](Index b, Index h, Index i, Index j) { return !allowed(b, h, i, j); };
    check_mask(keep_if(predicate), keeps(allowed), s, false);
    check_mask(drop_if(predicate), keeps(dropped), s, false);
    check_mask(modify_score([](auto score, ScorePosition at) {
                 using A = decltype(score);
                 return score * A(2) + static_cast<A>(at.batch + 10 * at.head + 100 * at.query +
                                                      1000 * at.key + 10000 * at.query_position);
               }),
               changes([&](auto score, Index b, Index h, Index i, Index j) {
                 using A = decltype(score);
                 return score * A(2) +
                        static_cast<A>(b + 10 * h + 100 * i + 1000 * j + 10000 * (i + s.offset));
               }),
               s, true);
  }
}

TEST(Masks, ComposeLeftToRight) {
  TestTensor<float> bias({1, 3, 4, 5});
  bias.fill([](Index, Index h, Index i, Index j) {
    return (h + i + j) % 4 == 0 ? -test::infinity<float>() : static_cast<float>(h - i + 2 * j);
  });
  const auto bias_at = [&](Index h, Index i, Index j) { return bias(0, h, i, j); };
  const Formula bias_formula =
      keeps([&](Index, Index h, Index i, Index j) { return (h + i + j) % 4 != 0; }) &
      changes([&](auto score, Index, Index h, Index i, Index j) {
        return score + static_cast<decltype(score)>(bias_at(h, i, j));
      });
  const Formula causal_formula =
      keeps([](Index, Index, Index i, Index j) { return j <= i + kDistinct.offset; });
  // Not linear, so that the order matters; it also turns -infinity into a finite number.
  const auto square = modify_score([](auto score, ScorePosition) {
    return (std::isinf(score) ? decltype(score)(2) : score) * decltype(score)(0.5) + 1;
  });
  const Formula square_formula = changes(
      [](auto score, Index, Index, Index, Index) { return score * decltype(score)(0.5) + 1; });
  check_mask(add_bias(bias.view()) & square, bias_formula & square_formula, kDistinct, false);
  check_mask(square & add_bias(bias.view()), square_formula & bias_formula, kDistinct, false);
  check_mask(causal() & add_bias(bias.view()) & square,
             causal_formula & bias_formula & square_formula, kDistinct, false);
  check_mask(causal() & (add_bias(bias.view()) & square),
             causal_formula & bias_formula & square_formula, kDistinct, false);
  check_mask(causal() & sliding_window(1, 1) & key_lengths(4),
             causal_formula & keeps([](Index, Index, Index i, Index j) {
               return std::abs(j - i - kDistinct.offset) <= 1 && j < 4;
             }),
             kDistinct, false);
}

TEST(AnyMask, AnswersAsTheMaskItHolds) {
  check_mask(AnyMask(), Formula{}, kDistinct, true);
  AnyMask mask = causal();
  const auto position = [](Index i) { return i + kDistinct.offset; };
  check_mask(mask, keeps([&](Index, Index, Index i, Index j) { return j <= position(i); }),
             kDistinct, true);
  mask = sliding_window(1, 0) & key_lengths(3);
  const Formula window_formula = keeps([&](Index, Index, Index i, Index j) {
    return j <= position(i) && j >= position(i) - 1 && j < 3;
  });
  check_mask(mask, window_formula, kDistinct, false);
  check_mask(AnyMask(mask), window_formula, kDistinct, false);
  const Formula doubled =
      changes([](auto score, Index, Index, Index, Index) { return score * decltype(score)(2); });
  const AnyMask both =
      mask & modify_score([](auto score, ScorePosition) { return score * decltype(score)(2); });
  check_mask<float>(both, window_formula & doubled, kDistinct, false);
  check_mask<double>(both, window_formula & doubled, kDistinct, false);
  EXPECT_TRUE(both.modifies());
  EXPECT_FALSE(mask.modifies());
  static_assert(is_mask_v<AnyMask>);
  static_assert(std::is_convertible_v<CausalMask, AnyMask>);
  static_assert(!std::is_convertible_v<int, AnyMask>);
}

}  // namespace
}  // namespace attn

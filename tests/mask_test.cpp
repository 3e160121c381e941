#include "attn/mask.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::changes;
using test::Formula;
using test::keeps;
using test::message_of;
using test::TestTensor;

struct Shapes {
  Index batch, heads, queries, keys;
  Index offset;  // position of query 0
};

template <class A>
bool is_dropped(A score) {
  return std::isinf(score) && score < 0;
}

/// Some scores of a tile, all different; NaN in every entry that the formula drops, if asked for.
template <class A>
struct TileMemory {
  static constexpr Index kPadding = 3;
  std::vector<A> scores;
  ScoreTile<A> tile;

  TileMemory(const RowBlock& rows, KeyRange keys, bool rows_inner, InstructionSet set) {
    const Index row_extent = rows.count + kPadding, key_extent = keys.size() + kPadding;
    scores.resize(static_cast<std::size_t>(row_extent * key_extent));
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<A>(i) / 8 - 4;
    tile = ScoreTile<A>{
        rows, keys, scores.data(), rows_inner ? 1 : key_extent, rows_inner ? row_extent : 1, set};
  }
};

/// One tile: cover must be true to the formula, and modify and apply must do what it says.
template <class A>
void check_tile(const AnyMask& mask, const Formula& formula, const RowBlock& rows, KeyRange keys,
                bool is_exact, InstructionSet set = InstructionSet::best) {
  Index allowed = 0;
  const Index entries = rows.count * keys.size();
  for (Index row = 0; row < rows.count; ++row) {
    for (Index key = keys.begin; key < keys.end; ++key) {
      allowed += formula.allows(rows.batch, rows.head(row), rows.query(row), key);
    }
  }
  const Cover cover = mask.cover(rows, keys);
  if (cover == Cover::none) {
    EXPECT_EQ(allowed, 0);
  }
  if (cover == Cover::all) {
    EXPECT_EQ(allowed, entries);
  }
  if (is_exact && rows.head(0) == rows.head(rows.count - 1)) {
    EXPECT_EQ(cover, allowed == 0 ? Cover::none : allowed == entries ? Cover::all : Cover::partial);
  }
  for (const bool rows_inner : {true, false}) {
    TileMemory<A> memory(rows, keys, rows_inner, set);
    const std::vector<A> before = memory.scores;
    mask.modify(memory.tile);
    if (cover != Cover::all) mask.apply(memory.tile, false);
    std::vector<bool> is_entry(before.size());
    for (Index row = 0; row < rows.count; ++row) {
      for (Index key = keys.begin; key < keys.end; ++key) {
        const Index b = rows.batch, h = rows.head(row), i = rows.query(row);
        const auto at = static_cast<std::size_t>(&memory.tile(row, key) - memory.scores.data());
        is_entry[at] = true;
        const A changed = formula.change(before[at], b, h, i, key);
        if (!formula.allows(b, h, i, key)) {
          EXPECT_TRUE(is_dropped(memory.scores[at]))
              << "(" << b << ", " << h << ", " << i << ", " << key << ") is not dropped";
        } else {
          EXPECT_TRUE(test::same_bits(memory.scores[at], changed))
              << "(" << b << ", " << h << ", " << i << ", " << key << ") is " << memory.scores[at]
              << " and should be " << changed;
        }
      }
    }
    for (std::size_t at = 0; at < before.size(); ++at) {
      if (!is_entry[at]) {
        EXPECT_EQ(memory.scores[at], before[at]) << "written outside the tile";
      }
    }
  }
}

/// Holds a mask's answers to a formula, for every block of rows and every range of keys.
/// `is_exact`: key_range and cover give the tightest answers within one head.
template <class A = float>
void check_mask(const AnyMask& mask, const Formula& formula, const Shapes& s, bool is_exact) {
  for (Index b = 0; b < s.batch; ++b) {
    for (Index first_head = 0; first_head < s.heads; ++first_head) {
      for (Index group = 1; first_head + group <= s.heads; ++group) {
        const RowBlock all{b, s.heads, first_head, s.queries, s.offset, 0, group * s.queries};
        for (Index begin = 0; begin < all.count; ++begin) {
          for (Index count = 1; begin + count <= all.count; ++count) {
            const RowBlock rows = all.slice(begin, count);
            const KeyRange range = mask.key_range(rows, s.keys);
            Index lowest = s.keys, highest = -1;
            for (Index row = 0; row < count; ++row) {
              for (Index key = 0; key < s.keys; ++key) {
                const Index i = rows.query(row), h = rows.head(row);
                const bool allowed = formula.allows(b, h, i, key);
                ASSERT_EQ(mask.allows({b, h, i, key, i + s.offset}), allowed)
                    << "(" << b << ", " << h << ", " << i << ", " << key << ")";
                if (!allowed) continue;
                lowest = (std::min)(lowest, key);
                highest = (std::max)(highest, key);
              }
            }
            if (highest >= 0) {
              EXPECT_LE(range.begin, lowest);
              EXPECT_GE(range.end, highest + 1);
            }
            EXPECT_GE(range.begin, 0);
            EXPECT_LE(range.end, s.keys);
            if (is_exact && rows.head(0) == rows.head(count - 1)) {
              EXPECT_EQ(range.size(), highest < 0 ? 0 : highest + 1 - lowest);
            }
            // Every fifth block gets every range of keys: the rows of all are the same code.
            if ((begin + 2 * count) % 5 != 0) continue;
            for (Index key_begin = 0; key_begin < s.keys; ++key_begin) {
              for (Index key_end = key_begin + 1; key_end <= s.keys; ++key_end) {
                check_tile<A>(mask, formula, rows, {key_begin, key_end}, is_exact);
              }
            }
          }
        }
      }
    }
  }
}

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

/// The shapes that broadcast to the scores: each axis full or 1.
std::vector<Shape4> broadcast_shapes(const Shapes& s) {
  std::vector<Shape4> shapes;
  for (int bits = 0; bits < 16; ++bits) {
    shapes.push_back({bits & 1 ? s.batch : 1, bits & 2 ? s.heads : 1, bits & 4 ? s.queries : 1,
                      bits & 8 ? s.keys : 1});
  }
  return shapes;
}

/// The entry of a broadcast tensor.
template <class T>
T broadcast_at(const TestTensor<T>& tensor, Index b, Index h, Index i, Index j) {
  const Shape4& s = tensor.shape();
  return tensor(s.batch == 1 ? 0 : b, s.heads == 1 ? 0 : h, s.length == 1 ? 0 : i,
                s.dim == 1 ? 0 : j);
}

const Shapes kDistinct{2, 3, 4, 5, 1};  // no two alike, so that swapped axes cannot cancel

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

/// A bias of which a fifth drops its keys.
template <class T>
TestTensor<T> random_bias(const Shape4& shape, test::Layout layout) {
  TestTensor<T> bias(shape, layout);
  bias.fill([&](Index b, Index h, Index i, Index j) {
    const double x = test::uniform(6, test::linear_index(shape, b, h, i, j));
    return x > 0.6 ? -test::infinity<T>() : test::to<T>(4 * x);
  });
  return bias;
}
template <class T>
Formula formula_of(const TestTensor<T>& bias) {
  const auto at = [&bias](Index b, Index h, Index i, Index j) {
    return static_cast<double>(test::widen(broadcast_at(bias, b, h, i, j)));
  };
  return keeps([at](Index b, Index h, Index i, Index j) { return at(b, h, i, j) > -1e300; }) &
         changes([at](auto score, Index b, Index h, Index i, Index j) {
           return score + static_cast<decltype(score)>(at(b, h, i, j));
         });
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
  mask.apply(tile, false);
  const float most = (std::numeric_limits<float>::max)();
  EXPECT_EQ(scores[0], -most);  // clamped to float's range before it is added
  EXPECT_EQ(scores[1], -most);
  EXPECT_TRUE(is_dropped(scores[2])) << "its score was NaN";
  EXPECT_EQ(scores[3], most);
  EXPECT_EQ(scores[4], 4);

  for (Index j = 0; j < 5; ++j) EXPECT_EQ(mask.allows({0, 0, 0, j, 0}), j != 2);

  // Whatever later masks make of a dropped score, it stays dropped.
  scores[2] = 7;
  mask.apply(tile, true);
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

/// Tiles of several blocks and vectors, and what is left over, on every instruction set.
template <class A>
void check_large_tiles(const AnyMask& mask, const Formula& formula, Index query_offset) {
  const RowBlock all{1, 2, 0, 37, query_offset, 0, 74};
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(detail::name_of(set));
    check_tile<A>(mask, formula, all.slice(0, 37), {0, 80}, false, set);
    check_tile<A>(mask, formula, all.slice(3, 48), {5, 71}, false, set);  // of both heads
    check_tile<A>(mask, formula, all.slice(40, 16), {16, 32}, false, set);
  }
}

const Shapes kLarge{2, 2, 37, 80, 3};

TEST(Masks, LargeDenseMasksAgreeOnEveryInstructionSet) {
  for (const test::Layout layout : test::kAllLayouts) {
    for (const Shape4& shape : broadcast_shapes(kLarge)) {
      TestTensor<std::uint8_t> bytes(shape, layout);
      bytes.fill([&](Index b, Index h, Index i, Index j) {
        return test::uniform(8, test::linear_index(shape, b, h, i, j)) < 0 ? 0 : 1 + i * j % 255;
      });
      const auto is_true = [&](Index b, Index h, Index i, Index j) {
        return broadcast_at(bytes, b, h, i, j) != 0;
      };
      const auto is_false = [&](Index b, Index h, Index i, Index j) {
        return !is_true(b, h, i, j);
      };
      check_large_tiles<float>(keep_where(bytes.view()), keeps(is_true), kLarge.offset);
      check_large_tiles<double>(drop_where(bytes.view()), keeps(is_false), kLarge.offset);
    }
  }
}

template <class T>
void check_large_biases(test::Layout layout) {
  for (const Shape4& shape : broadcast_shapes(kLarge)) {
    const TestTensor<T> bias = random_bias<T>(shape, layout);
    check_large_tiles<float>(add_bias(bias.view()), formula_of(bias), kLarge.offset);
    check_large_tiles<double>(add_bias(bias.view()), formula_of(bias), kLarge.offset);
  }
}
TEST(Masks, LargeBiasesAgreeOnEveryInstructionSet) {
  for (const test::Layout layout : test::kAllLayouts) check_large_biases<float>(layout);
  check_large_biases<double>(test::Layout::contiguous);
  check_large_biases<Eigen::half>(test::Layout::contiguous);
  check_large_biases<Eigen::half>(test::Layout::permuted);
  check_large_biases<Eigen::bfloat16>(test::Layout::contiguous);
}

TEST(Masks, AlibiOfLargeTilesAgreesOnEveryInstructionSet) {
  const std::vector<double> slopes = {0.25, 0x1p-6};  // products are exact, fused or not
  // Near the keys, and where float or double count in steps of 4.
  for (const Index offset : {Index{3}, Index{-60}, (Index{1} << 25) + 1, -(Index{1} << 25),
                             (Index{1} << 54) + 1, -(Index{1} << 54)}) {
    const Formula formula = changes([&](auto score, Index, Index h, Index i, Index j) {
      using A = decltype(score);
      const Index p = i + offset;
      return score - static_cast<A>(slopes[static_cast<std::size_t>(h)]) *
                         static_cast<A>(p > j ? p - j : j - p);
    });
    check_large_tiles<float>(alibi(slopes), formula, offset);
    check_large_tiles<double>(alibi(slopes), formula, offset);
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

// ---- What the checks of a call ask of a mask.

/// The offset of each batch that a call of this shape would use.
template <class M>
std::vector<Index> offsets_of(const M& mask, const Shapes& s,
                              const std::optional<PerBatch>& option = {}) {
  detail::CallShapes call("call");
  const Tensor4<const float> q(nullptr, {s.batch, s.heads, s.queries, 0});
  call.add_input("q", detail::TensorRef(q));
  detail::MaskChecker checker(call, {s.batch, s.heads, s.queries, s.keys},
                              double((std::numeric_limits<float>::max)()));
  if (option) checker.declare_offset("options.query_offset", *option);
  mask.check(checker);
  const PerBatch offset = checker.resolve_offset();
  std::vector<Index> result;
  for (Index b = 0; b < s.batch; ++b) result.push_back(offset[b]);
  return result;
}

const Shapes kShort{2, 3, 2, 5, 0}, kSquare{2, 3, 5, 5, 0};
using Offsets = std::vector<Index>;

TEST(QueryOffset, ComesFromTheFirstThatSaysIt) {
  EXPECT_EQ(offsets_of(no_mask(), kShort), (Offsets{3, 3}));
  EXPECT_EQ(offsets_of(no_mask(), kShort, PerBatch(1)), (Offsets{1, 1}));
  EXPECT_EQ(offsets_of(causal(), kSquare), (Offsets{0, 0}));
  EXPECT_EQ(offsets_of(causal(), kShort, PerBatch(2)), (Offsets{2, 2}));
  EXPECT_EQ(offsets_of(causal_top_left(), kShort), (Offsets{0, 0}));
  EXPECT_EQ(offsets_of(causal_bottom_right(), kShort), (Offsets{3, 3}));
  const std::vector<Index> past = {1, 4};
  EXPECT_EQ(offsets_of(causal_from(past), kShort), (Offsets{1, 4}));
  EXPECT_EQ(offsets_of(causal_from(-7), kShort), (Offsets{-7, -7}));
  // Another mask of the same call follows, on either side.
  EXPECT_EQ(offsets_of(causal() & causal_from(2), kShort), (Offsets{2, 2}));
  EXPECT_EQ(offsets_of(sliding_window(1, 1) & causal_from(past), kShort), (Offsets{1, 4}));
  EXPECT_EQ(offsets_of(causal_from(past) & alibi(), kShort), (Offsets{1, 4}));
  EXPECT_EQ(offsets_of(sliding_window(1, 1), kShort), (Offsets{3, 3}));
}

TEST(QueryOffset, TwoThatAgreeAreLegal) {
  const std::vector<Index> past = {3, 3};
  EXPECT_EQ(offsets_of(causal_from(past) & causal_from(3), kShort, PerBatch(3)), (Offsets{3, 3}));
  EXPECT_EQ(offsets_of(causal_bottom_right() & causal_from(past), kShort), (Offsets{3, 3}));
  EXPECT_EQ(offsets_of(causal_top_left() & causal_bottom_right(), kSquare), (Offsets{0, 0}));
  EXPECT_EQ(offsets_of(causal_top_left() & causal_top_left(), kShort), (Offsets{0, 0}));
}

TEST(QueryOffset, TwoThatDifferAreAnError) {
  const std::vector<Index> past = {3, 2};
  EXPECT_EQ(message_of<OptionError>(
                [&] { offsets_of(causal_top_left() & causal_bottom_right(), kShort); }),
            "call: causal_top_left() and causal_bottom_right() give different positions to the "
            "queries; got q [2, 3, 2, 0]");
  EXPECT_EQ(message_of<OptionError>([&] { offsets_of(causal_from(past), kShort, PerBatch(3)); }),
            "call: options.query_offset and causal_from(offset) give different positions to the "
            "queries; got q [2, 3, 2, 0]");
  EXPECT_THROW(offsets_of(causal_bottom_right() & causal_from(past), kShort), OptionError);
  EXPECT_THROW(offsets_of(causal_bottom_right() & sliding_window(1, 1), kShort, PerBatch(0)),
               OptionError);
  // Only the last of three differs from the first.
  EXPECT_THROW(offsets_of(causal_from(3) & causal_bottom_right() & causal_top_left(), kShort),
               OptionError);
}

TEST(QueryOffset, CausalAsksWhereTheQueriesStand) {
  EXPECT_EQ(message_of<ShapeError>([] { offsets_of(causal(), kShort); }),
            "call: causal() needs as many queries as keys, or a position: use causal_top_left() "
            "(offset 0), causal_bottom_right() (offset Sk - Sq), causal_from(offset) or "
            "options.query_offset; got q [2, 3, 2, 0]");
  EXPECT_THROW(offsets_of(AnyMask(causal() & sliding_window(1, 0)), kShort), ShapeError);
  EXPECT_THROW(offsets_of(sliding_window(1, 0) & causal(), kShort), ShapeError);
}

TEST(QueryOffset, KeyLengthsLeaveTheEndOpen) {
  const std::vector<Index> lengths = {2, 4};
  const KeyLengthsMask valid = key_lengths(lengths);
  const std::string rest =
      " with key_lengths and a query length that is not the key length: say where the queries "
      "stand, as causal_from(offset) or options.query_offset (length - Sq: at the end of the valid "
      "keys); got q [2, 3, 2, 0]";
  const auto position_users = std::vector<std::pair<AnyMask, std::string>>{
      {causal_bottom_right(), "causal_bottom_right()"},
      {sliding_window(1, 0), "sliding_window()"},
      {alibi(), "alibi()"},
      {keep_if([](ScorePosition) { return true; }), "keep_if()"},
      {drop_if([](ScorePosition) { return true; }), "drop_if()"},
      {modify_score([](auto score, ScorePosition) { return score; }), "modify_score()"},
  };
  for (const auto& [mask, name] : position_users) {
    EXPECT_EQ(message_of<ShapeError>([&, m = mask] { offsets_of(m & valid, kShort); }),
              "call: " + name + rest);
    EXPECT_EQ(message_of<ShapeError>([&, m = mask] { offsets_of(valid & m, kShort); }),
              "call: " + name + rest);
    // As many queries as keys, or a number: nothing is open.
    EXPECT_EQ(offsets_of(mask & valid, kSquare), (Offsets{0, 0}));
  }
  EXPECT_THROW(offsets_of(causal() & valid, kShort), ShapeError);
  EXPECT_EQ(offsets_of(causal() & valid, kSquare), (Offsets{0, 0}));
  EXPECT_EQ(offsets_of(valid, kShort), (Offsets{3, 3})) << "no position matters";
  EXPECT_EQ(offsets_of(causal_top_left() & valid, kShort), (Offsets{0, 0}));
  EXPECT_EQ(offsets_of(causal_from(1) & valid & alibi(), kShort), (Offsets{1, 1}));
  EXPECT_EQ(offsets_of(sliding_window(1, 0) & valid, kShort, PerBatch(2)), (Offsets{2, 2}));
  EXPECT_EQ(offsets_of(causal_from(3) & causal_bottom_right() & valid, kShort), (Offsets{3, 3}));
  EXPECT_EQ(offsets_of(causal_bottom_right() & causal_from(3) & valid, kShort), (Offsets{3, 3}));
}

TEST(MaskChecks, SayWhatIsWrong) {
  const auto error_of = [](const AnyMask& mask) {
    return message_of<std::invalid_argument>([&] { offsets_of(mask, kShort); });
  };
  EXPECT_EQ(error_of(sliding_window(-1, 0)),
            "call: sliding_window(left, right) takes 0 or more on each side, got left -1, right 0; "
            "got q [2, 3, 2, 0]");
  EXPECT_EQ(error_of(sliding_window(kUnlimited, -5)),
            "call: sliding_window(left, right) takes 0 or more on each side, got left " +
                std::to_string(kUnlimited) + ", right -5; got q [2, 3, 2, 0]");
  const std::vector<int> three = {1, 2, 3}, long_one = {1, 6}, negative = {0, -1};
  EXPECT_EQ(error_of(key_lengths(three)),
            "call: key_lengths must hold one number, or one each batch of q, 2, got 3; got q [2, "
            "3, 2, 0]");
  EXPECT_EQ(error_of(key_lengths(long_one)),
            "call: key_lengths must lie within 0 and the number of keys 5, got 6 for batch 1; got "
            "q [2, 3, 2, 0]");
  EXPECT_EQ(error_of(key_lengths(negative)),
            "call: key_lengths must lie within 0 and the number of keys 5, got -1 for batch 1; got "
            "q [2, 3, 2, 0]");
  EXPECT_EQ(error_of(key_lengths(6)),
            "call: key_lengths must lie within 0 and the number of keys 5, got 6 for batch 0; got "
            "q [2, 3, 2, 0]");
  EXPECT_EQ(error_of(causal_from(three)),
            "call: causal_from(offset) must hold one number, or one each batch of q, 2, got 3; got "
            "q [2, 3, 2, 0]");
  const std::vector<double> two_slopes = {1, 2}, infinite = {1, test::infinity<double>(), 2},
                            nan = {test::quiet_nan<double>(), 1, 2}, wide = {1, 2, 1e39};
  EXPECT_EQ(error_of(alibi(two_slopes)),
            "call: alibi slopes must hold one number a query head, 3, got 2; got q [2, 3, 2, 0]");
  EXPECT_EQ(error_of(alibi(infinite)),
            "call: alibi slopes must be finite in the accumulation type, got inf; got q [2, 3, 2, "
            "0]");
  EXPECT_EQ(error_of(alibi(nan)),
            "call: alibi slopes must be finite in the accumulation type, got nan; got q [2, 3, 2, "
            "0]");
  EXPECT_NE(error_of(alibi(wide)).find("must be finite in the accumulation type"),
            std::string::npos);
}

TEST(MaskChecks, MaskTensorsHaveTheShapeOfTheScores) {
  bool mask[1] = {true};
  float bias[1] = {0};
  const auto error_of = [](const AnyMask& m) {
    return message_of<ShapeError>([&] { offsets_of(m, kShort); });
  };
  const Shape4 wrong[] = {{1, 1, 5, 2}, {3, 1, 2, 5}, {2, 2, 2, 5}, {2, 3, 2, 4}, {0, 3, 2, 5}};
  for (const Shape4& shape : wrong) {
    const std::string text = detail::describe("", shape);
    EXPECT_EQ(error_of(keep_where(Tensor4<bool>(mask, shape))),
              "call: the keep_where mask must have the shape of the scores, or 1, on every axis: "
              "scores [2, 3, 2, 5]; got q [2, 3, 2, 0], keep_where mask" +
                  text);
    EXPECT_EQ(error_of(drop_where(Tensor4<bool>(mask, shape))),
              "call: the drop_where mask must have the shape of the scores, or 1, on every axis: "
              "scores [2, 3, 2, 5]; got q [2, 3, 2, 0], drop_where mask" +
                  text);
    EXPECT_EQ(error_of(add_bias(Tensor4<float>(bias, shape))),
              "call: the add_bias bias must have the shape of the scores, or 1, on every axis: "
              "scores [2, 3, 2, 5]; got q [2, 3, 2, 0], add_bias bias" +
                  text);
  }
  EXPECT_EQ(error_of(add_bias(Tensor4<float>(bias, {1, 1, -1, 1}))),
            "call: add_bias bias has a negative extent; got q [2, 3, 2, 0], add_bias bias [1, 1, "
            "-1, 1]");
  EXPECT_EQ(error_of(no_mask() & keep_where(Tensor4<bool>(nullptr, {1, 1, 1, 1}))),
            "call: keep_where mask is not empty, but its pointer is null; got q [2, 3, 2, 0], "
            "keep_where mask [1, 1, 1, 1]");
}

}  // namespace
}  // namespace attn

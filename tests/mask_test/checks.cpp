// What the checks of a call ask of a mask: where the queries stand, and what is refused.
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/offsets.hpp"
#include "support/error_cases.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using test::message_of;

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

/// How each mask is wrong, and the rule that its error states.
using WrongMasks = std::vector<std::pair<AnyMask, std::string>>;

TEST(MaskChecks, SayWhatIsWrong) {
  const std::vector<int> three = {1, 2, 3}, long_one = {1, 6}, negative = {0, -1};
  const std::vector<double> two_slopes = {1, 2}, infinite = {1, test::infinity<double>(), 2},
                            nan = {test::quiet_nan<double>(), 1, 2}, wide = {1, 2, 1e39};
  const std::string window = "sliding_window(left, right) takes 0 or more on each side, got ",
                    lengths = "key_lengths must lie within 0 and the number of keys 5, got ",
                    each_batch = " must hold one number, or one each batch of q, 2, got 3",
                    slopes = "alibi slopes must be finite in the accumulation type, got ";
  for (const auto& [mask, rule] : WrongMasks{
           {sliding_window(-1, 0), window + "left -1, right 0"},
           {sliding_window(kUnlimited, -5),
            window + "left " + std::to_string(kUnlimited) + ", right -5"},
           {key_lengths(three), "key_lengths" + each_batch},
           {key_lengths(long_one), lengths + "6 for batch 1"},
           {key_lengths(negative), lengths + "-1 for batch 1"},
           {key_lengths(6), lengths + "6 for batch 0"},
           {causal_from(three), "causal_from(offset)" + each_batch},
           {alibi(two_slopes), "alibi slopes must hold one number a query head, 3, got 2"},
           {alibi(infinite), slopes + "inf"},
           {alibi(nan), slopes + "nan"},
           {alibi(wide), slopes + "1e+39"},
       }) {
    EXPECT_EQ(message_of<std::invalid_argument>([&, m = mask] { offsets_of(m, kShort); }),
              "call: " + rule + "; got q [2, 3, 2, 0]");
  }
}

TEST(MaskChecks, MaskTensorsHaveTheShapeOfTheScores) {
  bool flag[1] = {true};
  float bias[1] = {0};
  const auto error_of = [](const AnyMask& m) {
    return message_of<ShapeError>([&] { offsets_of(m, kShort); });
  };
  const Shape4 wrong[] = {{1, 1, 5, 2}, {3, 1, 2, 5}, {2, 2, 2, 5}, {2, 3, 2, 4}, {0, 3, 2, 5}};
  for (const Shape4& shape : wrong) {
    for (const auto& [mask, name] :
         WrongMasks{{keep_where(Tensor4<bool>(flag, shape)), "keep_where mask"},
                    {drop_where(Tensor4<bool>(flag, shape)), "drop_where mask"},
                    {add_bias(Tensor4<float>(bias, shape)), "add_bias bias"}}) {
      EXPECT_EQ(error_of(mask),
                "call: the " + name +
                    " must have the shape of the scores, or 1, on every axis: scores [2, 3, 2, 5]; "
                    "got q [2, 3, 2, 0], " +
                    test::list_of({{name.c_str(), shape}}, 1));
    }
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

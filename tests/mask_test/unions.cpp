// Unions held to their formulas, on small tiles of every shape, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/offsets.hpp"
#include "mask_test/tiles.hpp"
#include "support/formula.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::changes;
using test::Formula;
using test::keeps;
using test::message_of;
using test::TestTensor;

Formula window(Index left, Index right, Index offset = kDistinct.offset) {
  return keeps([=](Index, Index, Index i, Index j) {
    return j >= i + offset - left && j <= i + offset + right;
  });
}
Formula between(Index begin, Index end) {
  return keeps([=](Index, Index, Index, Index j) { return j >= begin && j < end; });
}

TEST(FirstKeys, AreSeenByAll) {
  const std::vector<std::int32_t> counts = {3, 0};
  check_mask(first_keys(counts), keeps([&](Index b, Index, Index, Index j) {
               return j < counts[static_cast<std::size_t>(b)];
             }),
             kDistinct, true);
  check_mask(first_keys(0), between(0, 0), kDistinct, true);
  check_mask(first_keys(9), Formula{}, kDistinct, true);  // more than there are
}

TEST(KeysBetween, AreSeenByAll) {
  const std::vector<Index> begins = {1, 4};
  check_mask(keys_between(begins, kUnlimited), keeps([&](Index b, Index, Index, Index j) {
               return j >= begins[static_cast<std::size_t>(b)];
             }),
             kDistinct, true);
  const std::vector<std::int32_t> ends = {2, 5};
  check_mask(keys_between(1, ends), keeps([&](Index b, Index, Index, Index j) {
               return j >= 1 && j < ends[static_cast<std::size_t>(b)];
             }),
             kDistinct, true);
  check_mask(keys_between(2, 2), between(0, 0), kDistinct, true);
}

TEST(Unions, KeepWhatEitherSideKeeps) {
  const auto odd = keep_if([](ScorePosition at) { return (at.head + at.query + at.key) % 2 == 1; });
  const Formula odd_formula =
      keeps([](Index, Index h, Index i, Index j) { return (h + i + j) % 2 == 1; });
  check_mask(first_keys(1) | sliding_window(0, 0), between(0, 1) | window(0, 0), kDistinct, false);
  check_mask<double>(causal() | first_keys(3), window(99, 0) | between(0, 3), kDistinct, false);
  check_mask(odd | sliding_window(1, 0), odd_formula | window(1, 0), kDistinct, false);
  check_mask(odd | no_mask(), Formula{}, kDistinct, false);
  check_mask(first_keys(0) | key_lengths(0), between(0, 0), kDistinct, false);
  // Nested both ways.
  check_mask((odd | first_keys(1)) & sliding_window(1, 2),
             (odd_formula | between(0, 1)) & window(1, 2), kDistinct, false);
  check_mask((odd & first_keys(3)) | sliding_window(0, 0),
             (odd_formula & between(0, 3)) | window(0, 0), kDistinct, false);
  check_mask(
      (odd & causal()) | ((first_keys(1) | keys_between(4, 5)) & sliding_window(2, kUnlimited)),
      (odd_formula & window(99, 0)) | ((between(0, 1) | between(4, 5)) & window(2, 99)), kDistinct,
      false);
  check_mask(AnyMask(odd) | AnyMask(first_keys(2) | keys_between(4, 5)),
             odd_formula | between(0, 2) | between(4, 5), kDistinct, false);
}

// Tensors on both sides, which only their elements tell; large tiles are taken in pieces.
TEST(Unions, OfTensorsInLargeTiles) {
  const Shapes large{2, 2, 37, 80, 3};
  TestTensor<std::uint8_t> some({2, 2, 37, 80}), rows({1, 2, 37, 1});
  some.fill([&](Index b, Index h, Index i, Index j) {
    return test::uniform(8, test::linear_index(some.shape(), b, h, i, j)) < -0.7 ? 1 : 0;
  });
  rows.fill([](Index, Index h, Index i, Index) { return (h + i) % 5 == 0; });
  const AnyMask mask = keep_where(some.view()) | keep_where(rows.view()) | sliding_window(3, 3);
  const Formula formula =
      keeps([&](Index b, Index h, Index i, Index j) { return some(b, h, i, j) != 0; }) |
      keeps([&](Index, Index h, Index i, Index) { return rows(0, h, i, 0) != 0; }) |
      window(3, 3, large.offset);
  const RowBlock all{1, 2, 0, 37, large.offset, 0, 74};
  for (const InstructionSet set : test::instruction_sets()) {
    check_tile<float>(mask, formula, all, {0, 80}, false, set);
    check_tile<double>(mask, formula, all.slice(3, 48), {5, 71}, false, set);  // of both heads
    check_tile<float>(mask, formula, all.slice(36, 1), {0, 80}, false, set);
  }
}

// What changes scores stands beside a union, and is applied whichever side keeps the key.
TEST(Unions, BesideBiasesAndScoreFunctions) {
  const Formula doubled =
      changes([](auto score, Index, Index, Index, Index) { return score * decltype(score)(2); });
  const auto twice = modify_score([](auto score, ScorePosition) {
    return score * decltype(score)(2);  // of a dropped score, too
  });
  check_mask((first_keys(1) | sliding_window(0, 0)) & twice,
             (between(0, 1) | window(0, 0)) & doubled, kDistinct, false);
  TestTensor<float> bias({1, 3, 4, 5});
  bias.fill([](Index, Index h, Index i, Index j) {
    return (h + i + j) % 4 == 0 ? -test::infinity<float>() : static_cast<float>(h - i + 2 * j);
  });
  check_mask(add_bias(bias.view()) & twice & (first_keys(1) | sliding_window(1, 0)),
             formula_of(bias) & doubled & (between(0, 1) | window(1, 0)), kDistinct, false);
}

TEST(Unions, ShareThePositionOfTheCall) {
  EXPECT_EQ(offsets_of(causal_from(2) | first_keys(1), kShort), (Offsets{2, 2}));
  EXPECT_EQ(offsets_of(first_keys(1) | (causal() & causal_from(1)), kShort), (Offsets{1, 1}));
  EXPECT_EQ(offsets_of(causal() & (sliding_window(1, 0) | causal_top_left()), kShort),
            (Offsets{0, 0}));
  EXPECT_EQ(message_of<OptionError>(
                [] { offsets_of(causal_top_left() | causal_bottom_right(), kShort); }),
            "call: causal_top_left() and causal_bottom_right() give different positions to the "
            "queries; got q [2, 3, 2, 0]");
  EXPECT_THROW(offsets_of((causal_from(1) | first_keys(1)) & causal_from(2), kShort), OptionError);
  EXPECT_THROW(offsets_of(causal_from(1) | first_keys(1), kShort, PerBatch(0)), OptionError);
  EXPECT_THROW(offsets_of(causal() | first_keys(1), kShort), ShapeError);
  EXPECT_THROW(offsets_of(sliding_window(1, 0) | key_lengths(2), kShort), ShapeError);
  EXPECT_EQ(offsets_of(first_keys(2) | key_lengths(3), kShort), (Offsets{3, 3}));
}

// Keys that end before Sk leave open where the queries stand, as key_lengths does; padding at the
// begin does not.
TEST(KeysBetween, MayLeaveThePositionOpen) {
  EXPECT_EQ(offsets_of(sliding_window(1, 0) & keys_between(2, kUnlimited), kShort),
            (Offsets{3, 3}));
  EXPECT_EQ(offsets_of(sliding_window(1, 0) & keys_between(2, 5), kShort), (Offsets{3, 3}));
  EXPECT_EQ(
      message_of<ShapeError>([] { offsets_of(sliding_window(1, 0) & keys_between(2, 4), kShort); }),
      "call: sliding_window() with keys_between() and a query length that is not the key "
      "length: say where the queries stand, as causal_from(offset) or options.query_offset "
      "(length - Sq: at the end of the valid keys); got q [2, 3, 2, 0]");
  EXPECT_EQ(offsets_of(causal_from(1) & keys_between(2, 4), kShort), (Offsets{1, 1}));
  EXPECT_EQ(offsets_of(sliding_window(1, 0) | keys_between(2, 4), kShort), (Offsets{3, 3}));
}

TEST(Unions, RefuseWhatChangesScores) {
  TestTensor<float> bias({1, 1, 1, 5});
  const std::string text =
      "call: one of the masks in a union (|) adds biases or changes scores: combine such masks "
      "with & outside the union, whose sides only keep or drop keys; got q [2, 3, 2, 0]";
  for (const AnyMask& hidden :
       {AnyMask(add_bias(bias.view())), AnyMask(alibi()),
        AnyMask(causal_from(0) & modify_score([](auto score, ScorePosition) { return score; })),
        AnyMask(AnyMask(alibi()))}) {
    EXPECT_EQ(message_of<OptionError>([&] { offsets_of(hidden | first_keys(1), kShort); }), text);
    EXPECT_EQ(message_of<OptionError>([&] { offsets_of(first_keys(1) | hidden, kShort); }), text);
    EXPECT_EQ(message_of<OptionError>(
                  [&] { offsets_of(first_keys(1) | (causal_from(0) & hidden), kShort); }),
              text);
  }
}

TEST(KeySpans, SayWhatIsWrong) {
  const std::vector<Index> three = {1, 2, 3}, negative = {0, -1}, late = {0, 5};
  const std::string first = "first_keys(count) takes 0 or more keys, got ",
                    each_batch = " must hold one number, or one each batch of q, 2, got 3",
                    order =
                        "keys_between(begin, end) needs 0 <= begin <= end <= the number of "
                        "keys 5 (an end of kUnlimited: all), got ";
  for (const auto& [mask, rule] : std::vector<std::pair<AnyMask, std::string>>{
           {first_keys(three), "first_keys(count)" + each_batch},
           {first_keys(negative), first + "-1 for batch 1"},
           {keys_between(three, 5), "the begin of keys_between(begin, end)" + each_batch},
           {keys_between(0, three), "the end of keys_between(begin, end)" + each_batch},
           {keys_between(negative, 5), order + "begin -1, end 5 for batch 1"},
           {keys_between(late, 4), order + "begin 5, end 4 for batch 1"},
           {keys_between(0, 6), order + "begin 0, end 6 for batch 0"},
           {keys_between(6, kUnlimited), order + "begin 6, end 5 for batch 0"},
       }) {
    EXPECT_EQ(message_of<std::invalid_argument>([&, m = mask] { offsets_of(m, kShort); }),
              "call: " + rule + "; got q [2, 3, 2, 0]");
  }
}

}  // namespace
}  // namespace attn

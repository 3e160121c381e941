// Segments held to their formula, on small tiles of every shape, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/offsets.hpp"
#include "mask_test/tiles.hpp"
#include "support/error_cases.hpp"
#include "support/formula.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::Formula;
using test::keeps;
using test::message_of;
using test::TestTensor;
using Ids = TestTensor<std::int32_t>;

Ids draw_ids(Index batch, Index length, test::Layout layout, Index count) {
  Ids ids({batch, 1, length, 1}, layout);
  ids.fill([&](Index b, Index, Index i, Index) {
    return static_cast<std::int32_t>((3 * b + i * i + i) % (count + 1) - 1);
  });
  return ids;
}
Formula equal(const Ids& queries, const Ids& keys) {
  return keeps([&](Index b, Index, Index i, Index j) {
    const std::int32_t query = queries(queries.shape().batch == 1 ? 0 : b, 0, i, 0);
    return query >= 0 && query == keys(keys.shape().batch == 1 ? 0 : b, 0, j, 0);
  });
}

TEST(SameSegment, KeepsKeysOfTheSameId) {
  for (const test::Layout layout : test::kAllLayouts) {
    for (const Index batch : {1, 2}) {
      for (const Index count : {1, 2, 4}) {
        const Ids queries = draw_ids(2, kDistinct.queries, layout, count);
        const Ids keys = draw_ids(batch, kDistinct.keys, layout, count);
        check_mask(same_segment(queries.view(), keys.view()), equal(queries, keys), kDistinct,
                   false);
        check_mask<double>(
            same_segment(queries.view(), keys.view()) | first_keys(1),
            equal(queries, keys) | keeps([](Index, Index, Index, Index j) { return j < 1; }),
            kDistinct, false);
      }
    }
  }
  const Shapes square{2, 3, 5, 5, 0};
  const Ids ids = draw_ids(2, 5, test::Layout::contiguous, 3);
  check_mask(same_segment(ids.view()), equal(ids, ids), square, false);
}

TEST(SameSegment, InLargeTiles) {
  const Index queries = 37, keys = 150, offset = 3;
  Ids rising({1, 1, keys, 1}), of_queries({1, 1, queries, 1});
  rising.fill([](Index, Index, Index i, Index) { return static_cast<std::int32_t>(i / 20 - 1); });
  of_queries.fill(
      [](Index, Index, Index i, Index) { return static_cast<std::int32_t>((i + 3) / 20 - 1); });
  const Ids mixed = draw_ids(1, keys, test::Layout::inner_stride, 3);
  const RowBlock all{0, 2, 0, queries, offset, 0, 74};
  const Ids* const kinds[] = {&rising, &mixed};
  for (const Ids* const key_ids : kinds) {
    const AnyMask mask = same_segment(of_queries.view(), key_ids->view());
    const Formula formula = equal(of_queries, *key_ids);
    for (const KeyRange of_keys : {KeyRange{0, 150}, KeyRange{5, 71}, KeyRange{40, 60}}) {
      check_tile<float>(mask, formula, all.slice(0, 37), of_keys, false);
      check_tile<double>(mask, formula, all.slice(20, 30), of_keys, false);  // of both heads
    }
  }
}

// Documents that lie one behind the other skip each other, within a tile too.
TEST(SameSegment, SkipsOtherSegments) {
  Ids ids({1, 1, 40, 1});
  ids.fill([](Index, Index, Index i, Index) { return static_cast<std::int32_t>(i / 10); });
  const auto mask = same_segment(ids.view());
  const RowBlock rows{0, 1, 0, 40, 0, 12, 5};  // of document 1
  EXPECT_EQ(mask.cover(rows, {0, 10}), Cover::none);
  EXPECT_EQ(mask.cover(rows, {10, 20}), Cover::all);
  EXPECT_EQ(mask.cover(rows, {5, 15}), Cover::partial);
  const KeyRange within = mask.keys_within(rows, {0, 32}, 40);
  EXPECT_EQ(within.begin, 10);
  EXPECT_EQ(within.end, 20);
  EXPECT_TRUE(mask.keys_within(rows, {20, 40}, 40).empty());
  const RowBlock all{0, 1, 0, 40, 0, 0, 40};
  EXPECT_EQ(mask.row_range(all, {12, 15}).begin, 10);
  EXPECT_EQ(mask.row_range(all, {12, 15}).end, 20);
  // Rows that end one head and begin the next: documents 3 and 0, not all between.
  const RowBlock crossing{0, 2, 0, 40, 0, 38, 4};
  EXPECT_EQ(mask.cover(crossing, {10, 30}), Cover::none);
}

TEST(SameSegment, SaysWhatIsWrong) {
  const std::int32_t id[1] = {0};
  const auto ids = [&](Shape4 shape) { return Tensor4<const std::int32_t>(id, shape); };
  const auto error_of = [](const AnyMask& mask, const Shapes& shapes) {
    return message_of<ShapeError>([&] { offsets_of(mask, shapes); });
  };
  EXPECT_EQ(error_of(same_segment(ids({1, 1, 5, 1})), kShort),
            "call: same_segment ids must hold one number a token, for as many queries as keys: "
            "there are 2 and 5, and 5 ids; give those of queries and keys each, as "
            "same_segment(query_ids, key_ids); got q [2, 3, 2, 0], same_segment ids [1, 1, 5, 1]");
  EXPECT_NE(error_of(same_segment(ids({1, 1, 4, 1})), kSquare).find("5 and 5, and 4 ids"),
            std::string::npos);
  for (const Shape4& shape : {Shape4{3, 1, 2, 1}, Shape4{1, 3, 2, 1}, Shape4{1, 1, 2, 2}}) {
    EXPECT_EQ(error_of(same_segment(ids(shape), ids({1, 1, 5, 1})), kShort),
              "call: same_segment query_ids must be [batch of q or 1, 1, number of tokens, 1], the "
              "batch of q is 2; got q [2, 3, 2, 0], " +
                  test::list_of({{"same_segment query_ids", shape}}, 1));
  }
  EXPECT_EQ(error_of(same_segment(ids({1, 1, 2, 1}), ids({2, 1, 2, 1})), kShort),
            "call: same_segment key_ids must hold one number a key, 5, got 2; got q [2, 3, 2, 0], "
            "same_segment query_ids [1, 1, 2, 1], same_segment key_ids [2, 1, 2, 1]");
  EXPECT_EQ(error_of(same_segment(ids({1, 1, 5, 1}), ids({1, 1, 5, 1})), kShort),
            "call: same_segment query_ids must hold one number a query, 2, got 5; got q [2, 3, 2, "
            "0], same_segment query_ids [1, 1, 5, 1]");
}

}  // namespace
}  // namespace attn

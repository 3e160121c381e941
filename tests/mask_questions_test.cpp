// The questions that masks answer must not contradict each other: allows() decides, and key_range,
// keys_within, row_range and cover may only skip or spare what it decides alike.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace {

/// Rows, by head and query, and the keys that there are.
struct Group {
  Index heads, query_length, key_length, offset;

  RowBlock rows() const { return {0, heads, 0, query_length, offset, 0, heads * query_length}; }
};

ScorePosition position(const RowBlock& rows, Index row, Index key) {
  const Index query = rows.query(row);
  return {rows.batch, rows.head(row), query, key, query + rows.query_offset};
}

/// Holds a mask's answers for every block of rows and every range of keys against allows().
template <class M>
void expect_consistent(const M& mask, const Group& group) {
  const RowBlock all = group.rows();
  for (Index first = 0; first < all.count; ++first) {
    for (Index count = 1; first + count <= all.count; ++count) {
      const RowBlock rows = all.slice(first, count);
      const KeyRange reach = mask.key_range(rows, group.key_length);
      for (Index begin = 0; begin < group.key_length; ++begin) {
        for (Index end = begin + 1; end <= group.key_length; ++end) {
          const KeyRange keys{begin, end};
          const RowRange seeing = mask.row_range(rows, keys);
          const KeyRange within = detail::keys_within(mask, rows, keys, group.key_length);
          ASSERT_TRUE(within.empty() || (within.begin >= begin && within.end <= end));
          Index kept = 0;
          for (Index row = 0; row < count; ++row) {
            for (Index key = begin; key < end; ++key) {
              if (!mask.allows(position(rows, row, key))) continue;
              ++kept;
              ASSERT_TRUE(key >= reach.begin && key < reach.end) << "key_range leaves out " << key;
              ASSERT_TRUE(key >= within.begin && key < within.end)
                  << "keys_within leaves out " << key;
              ASSERT_TRUE(row >= seeing.begin && row < seeing.end)
                  << "row_range leaves out " << row;
            }
          }
          const Cover cover = mask.cover(rows, keys);
          if (cover == Cover::none) {
            ASSERT_EQ(kept, 0);
          }
          if (cover == Cover::all) {
            ASSERT_EQ(kept, count * keys.size());
          }
        }
      }
    }
  }
}

template <class M>
void expect_consistent(const M& mask) {
  for (const Index heads : {1, 2}) {
    for (const Index queries : {1, 2, 5}) {
      for (const Index keys : {1, 4, 7}) {
        for (const Index offset : {-3, 0, 2, 9}) {
          SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(queries) + " queries, " +
                       std::to_string(keys) + " keys, offset " + std::to_string(offset));
          expect_consistent(mask, Group{heads, queries, keys, offset});
        }
      }
    }
  }
}

TEST(MaskQuestions, AgreeForPositions) {
  expect_consistent(no_mask());
  expect_consistent(causal());
  for (const Index left : {Index{0}, Index{1}, Index{3}, kUnlimited}) {
    for (const Index right : {Index{0}, Index{2}, kUnlimited}) {
      expect_consistent(sliding_window(left, right));
    }
  }
  for (const Index length : {0, 1, 3, 7}) {
    expect_consistent(key_lengths(length));
    expect_consistent(first_keys(length));
    expect_consistent(keys_between(length, 7));
    expect_consistent(keys_between(1, length));
    expect_consistent(keys_between(length, kUnlimited));
  }
  expect_consistent(alibi());
}

TEST(MaskQuestions, AgreeForTensorsAndFunctions) {
  std::vector<std::uint8_t> flags;
  std::vector<float> biases;
  for (int i = 0; i < 2 * 5 * 7; ++i) {
    flags.push_back(i % 3 == 0);
    biases.push_back(i % 4 == 0 ? -std::numeric_limits<float>::infinity() : 0.5f);
  }
  const Shape4 scores{1, 2, 5, 7};
  expect_consistent(keep_where(Tensor4<const std::uint8_t>(flags.data(), scores)));
  expect_consistent(drop_where(Tensor4<const std::uint8_t>(flags.data(), scores)));
  expect_consistent(add_bias(Tensor4<const float>(biases.data(), scores)));
  expect_consistent(keep_if([](ScorePosition at) { return at.key % 2 == at.query % 2; }));
  expect_consistent(drop_if([](ScorePosition at) { return at.key == at.query_position; }));
}

TEST(MaskQuestions, AgreeForCompositions) {
  expect_consistent(causal() & sliding_window(2, 0));
  expect_consistent(key_lengths(5) & causal() &
                    drop_if([](ScorePosition at) { return at.key == 1; }));
  expect_consistent(AnyMask(sliding_window(1, 1) & key_lengths(4)));
}

TEST(MaskQuestions, AgreeForUnions) {
  const auto odd = keep_if([](ScorePosition at) { return at.key % 2 == 1; });
  expect_consistent(first_keys(1) | sliding_window(1, 0));
  expect_consistent(first_keys(0) | keys_between(3, 4));
  expect_consistent(causal() | first_keys(3));
  expect_consistent((causal() | odd) & sliding_window(3, 1));
  expect_consistent(keys_between(1, 2) | keys_between(4, 6) | sliding_window(0, 0));
  expect_consistent((first_keys(1) | (sliding_window(2, 0) & odd)) & (odd | key_lengths(2)));
  expect_consistent(AnyMask(first_keys(1)) | AnyMask(keys_between(5, 6) | odd));
}

TEST(MaskQuestions, AgreeForSegments) {
  std::vector<std::int32_t> queries, keys;
  for (const int step : {1, 2, 3}) {
    for (int i = 0; i < 7; ++i) queries.push_back(i / step - 1);
    for (int j = 0; j < 7; ++j) keys.push_back(step == 3 ? j % 3 : j / 2);
  }
  for (const Index first : {0, 7, 14}) {
    const Tensor4<const std::int32_t> of_queries(queries.data() + first, {1, 1, 7, 1});
    const Tensor4<const std::int32_t> of_keys(keys.data() + first, {1, 1, 7, 1});
    expect_consistent(same_segment(of_queries, of_keys));
    expect_consistent(causal() | same_segment(of_queries, of_keys));
    expect_consistent(same_segment(of_keys, of_keys) & sliding_window(2, 2));
  }
}

// They are worth asking: what a position mask drops is left out, not only dropped.
TEST(MaskQuestions, PositionMasksSkip) {
  const RowBlock rows = Group{1, 8, 16, 4}.rows().slice(2, 3);  // positions 6, 7, 8
  EXPECT_EQ(causal().key_range(rows, 16).end, 9);
  EXPECT_EQ(sliding_window(1, 0).key_range(rows, 16).begin, 5);
  EXPECT_EQ(causal().row_range(rows, {8, 9}).begin, 2);
  EXPECT_EQ(causal().row_range(rows, {8, 9}).end, 3);
  EXPECT_TRUE(causal().row_range(rows, {9, 12}).empty());
  EXPECT_EQ(sliding_window(1, 0).row_range(rows, {0, 7}).end, 2);
  EXPECT_TRUE(key_lengths(5).row_range(rows, {5, 6}).empty());
  EXPECT_EQ(causal().cover(rows, {0, 7}), Cover::all);
  EXPECT_EQ(causal().cover(rows, {0, 8}), Cover::partial);
  EXPECT_EQ(causal().cover(rows, {9, 10}), Cover::none);
  EXPECT_EQ(keys_between(5, 12).cover(rows, {5, 12}), Cover::all);
  EXPECT_EQ(keys_between(5, 12).cover(rows, {4, 6}), Cover::partial);
  EXPECT_EQ(keys_between(5, 12).cover(rows, {0, 5}), Cover::none);
  EXPECT_EQ(keys_between(5, kUnlimited).key_range(rows, 16).begin, 5);
  EXPECT_EQ(keys_between(5, kUnlimited).key_range(rows, 16).end, 16);
}

void expect_range(IndexRange range, Index begin, Index end) {
  EXPECT_EQ(range.begin, begin);
  EXPECT_EQ(range.end, end);
}

TEST(MaskQuestions, UnionsSkipWhatLiesBetween) {
  const Index keys = 200;
  const RowBlock rows = Group{1, 8, keys, 150}.rows().slice(2, 3);  // positions 152, 153, 154
  const auto mask = first_keys(4) | sliding_window(9, 0);
  expect_range(mask.key_range(rows, keys), 0, 155);
  expect_range(mask.keys_within(rows, {0, 64}, keys), 0, 4);
  EXPECT_TRUE(mask.keys_within(rows, {64, 128}, keys).empty());
  expect_range(mask.keys_within(rows, {128, 192}, keys), 143, 155);
  expect_range(mask.keys_within(rows, {0, 192}, keys), 0, 155);
  EXPECT_EQ(mask.cover(rows, {0, 4}), Cover::all);
  EXPECT_EQ(mask.cover(rows, {0, 5}), Cover::partial);
  EXPECT_EQ(mask.cover(rows, {4, 143}), Cover::none);
  EXPECT_EQ(mask.cover(rows, {145, 153}), Cover::all);
  expect_range(mask.row_range(rows, {0, 4}), 0, 3);
  EXPECT_TRUE(mask.row_range(rows, {4, 143}).empty());
  expect_range(mask.row_range(rows, {143, 144}), 0, 1);
  // A mask beside it narrows it further, and one whose type is erased says the same.
  expect_range((mask & key_lengths(150)).keys_within(rows, {128, 192}, keys), 143, 150);
  expect_range(AnyMask(mask).keys_within(rows, {128, 192}, keys), 143, 155);
  EXPECT_TRUE((AnyMask(mask) & no_mask()).keys_within(rows, {64, 128}, keys).empty());
}

}  // namespace
}  // namespace attn

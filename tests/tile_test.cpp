#include "attn/tile.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace attn {
namespace {

TEST(KeyRange, Intersects) {
  const KeyRange a{2, 8}, b{5, 12}, apart{9, 10};
  EXPECT_EQ((a & b).begin, 5);
  EXPECT_EQ((a & b).end, 8);
  EXPECT_EQ((b & a).size(), 3);
  EXPECT_TRUE((a & apart).empty());
  EXPECT_EQ((a & apart).size(), 0);
  EXPECT_EQ(a.size(), 6);
  EXPECT_TRUE(KeyRange{}.empty());
}

TEST(Cover, OfTwoMasks) {
  const Cover covers[] = {Cover::none, Cover::partial, Cover::all};
  for (const Cover a : covers) {
    for (const Cover b : covers) {
      const Cover expected = a == Cover::none || b == Cover::none ? Cover::none
                             : a == Cover::all && b == Cover::all ? Cover::all
                                                                  : Cover::partial;
      EXPECT_EQ(a & b, expected);
    }
  }
}

// Rows of a group go heads first, and every block of rows says which head and query each row is.
TEST(RowBlock, NamesTheHeadAndQueryOfEachRow) {
  const Index heads = 3, queries = 4, first_head = 6, offset = 10;
  const RowBlock group{1, 12, first_head, queries, offset, 0, heads * queries};
  for (Index begin = 0; begin < group.count; ++begin) {
    for (Index count = 1; begin + count <= group.count; ++count) {
      const RowBlock block = group.slice(begin, count);
      Index lowest = queries, highest = -1;
      for (Index row = 0; row < count; ++row) {
        EXPECT_EQ(block.head(row), first_head + (begin + row) / queries);
        EXPECT_EQ(block.query(row), (begin + row) % queries);
        lowest = (std::min)(lowest, block.query(row));
        highest = (std::max)(highest, block.query(row));
      }
      // Exact within one head; a block that crosses heads may name all queries.
      EXPECT_LE(block.query_begin(), lowest);
      EXPECT_GE(block.query_end(), highest + 1);
      EXPECT_GE(block.query_begin(), 0);
      EXPECT_LE(block.query_end(), queries);
      if (block.head(0) == block.head(count - 1)) {
        EXPECT_EQ(block.query_begin(), lowest);
        EXPECT_EQ(block.query_end(), highest + 1);
      }
      EXPECT_EQ(block.position_begin(), block.query_begin() + offset);
      EXPECT_EQ(block.position_end(), block.query_end() + offset);

      Index next = 0;
      block.for_each_run([&](Index run_begin, Index run_end, Index head, Index query) {
        EXPECT_EQ(run_begin, next);
        EXPECT_LT(run_begin, run_end);
        for (Index row = run_begin; row < run_end; ++row) {
          EXPECT_EQ(block.head(row), head);
          EXPECT_EQ(block.query(row), query + row - run_begin);
        }
        next = run_end;
      });
      EXPECT_EQ(next, count);
    }
  }
}

TEST(RowBlock, SlicesASlice) {
  const RowBlock group{0, 4, 2, 5, 0, 0, 10};
  const RowBlock block = group.slice(3, 6).slice(2, 4);
  EXPECT_EQ(block.first_row, 5);
  EXPECT_EQ(block.count, 4);
  EXPECT_EQ(block.head(0), 3);
  EXPECT_EQ(block.query(0), 0);
}

TEST(ScoreTile, VisitsEveryEntryOnceInBothOrientations) {
  const RowBlock rows = RowBlock{1, 12, 6, 4, 10, 0, 12}.slice(2, 7);
  const KeyRange keys{5, 10};
  const Index padded_rows = 9, padded_keys = 8;
  for (const bool rows_inner : {true, false}) {
    std::vector<float> memory(static_cast<std::size_t>(padded_rows * padded_keys));
    const ScoreTile<float> tile{rows,
                                keys,
                                memory.data(),
                                rows_inner ? 1 : padded_keys,
                                rows_inner ? padded_rows : 1,
                                InstructionSet::best};
    tile.for_each([&](float& score, const ScorePosition& at) {
      const Index row = (at.head - 6) * 4 + at.query - 2;
      ASSERT_GE(row, 0);
      ASSERT_LT(row, rows.count);
      EXPECT_EQ(&score, &tile(row, at.key));
      EXPECT_EQ(at.batch, 1);
      EXPECT_EQ(at.query_position, at.query + 10);
      score += 1;
    });
    for (Index row = 0; row < padded_rows; ++row) {
      for (Index key = 0; key < padded_keys; ++key) {
        const float visits =
            memory[static_cast<std::size_t>(row * tile.row_stride + key * tile.key_stride)];
        EXPECT_EQ(visits, row < rows.count && key < keys.size() ? 1.0f : 0.0f);
      }
    }
  }
}

}  // namespace
}  // namespace attn

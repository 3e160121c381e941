#include "attn/config.hpp"

#include "attn/detail/call/tile_plan.hpp"

#include <gtest/gtest.h>

#include "attn/detail/base/rounding.hpp"

namespace attn {
namespace {

// What the driver relies on, for every kind of shape.
TEST(TilePlan, FitsEveryShape) {
  for (const Index lanes : {2, 4, 8, 16}) {
    const Index row_tile = 3 * lanes;
    for (const Index rows : {1, 2, 15, 16, 17, 48, 49, 64, 65, 1000, 100000}) {
      for (const Index keys : {0, 1, 127, 128, 129, 4096, 4097, 100000}) {
        for (const Index dim : {0, 1, 64, 128, 512, 2048, 100000}) {
          const detail::TilePlan plan =
              detail::plan_tiles(rows, keys, dim, dim / 2, lanes, row_tile);
          EXPECT_GE(plan.key_tile, 1);
          EXPECT_GE(plan.key_split, plan.key_tile);
          EXPECT_EQ(plan.key_split % plan.key_tile, 0);
          EXPECT_GE(plan.row_tile, 1);
          EXPECT_GE(plan.row_block, 1);
          if (plan.rows_are_lanes) {
            EXPECT_GE(rows, 16);
            EXPECT_EQ(plan.row_tile, row_tile);
            EXPECT_EQ(plan.row_block % row_tile, 0);
            // Scratch is bounded whatever the number of rows and keys.
            EXPECT_LE(plan.row_block, 8 * row_tile);
          } else {
            EXPECT_EQ(plan.row_block, rows);
            EXPECT_TRUE(rows < 16 || (rows < 2 * lanes && keys > 128));
          }
          // Only few rows keep partial results, and those of no more keys than they have.
          EXPECT_TRUE(rows <= 128 || plan.key_split >= keys);
          EXPECT_LT(plan.key_split, keys + plan.key_tile + 1);
          const Index dims = dim + dim / 2;
          if (dims <= 2048) {
            EXPECT_GE(plan.key_tile, 64);
          }
        }
      }
    }
  }
}

TEST(TilePlan, RoundsUp) {
  EXPECT_EQ(detail::round_up(0, 8), 0);
  EXPECT_EQ(detail::round_up(1, 8), 8);
  EXPECT_EQ(detail::round_up(8, 8), 8);
  EXPECT_EQ(detail::ceil_div(0, 8), 0);
  EXPECT_EQ(detail::ceil_div(9, 8), 2);
  EXPECT_EQ(detail::ceil_div(16, 8), 2);
}

}  // namespace
}  // namespace attn

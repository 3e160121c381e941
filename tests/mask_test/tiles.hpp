// tests/mask_test/tiles.hpp - the answers of a mask held to what it means, block by block.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/mask.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {

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
void check_tile(const AnyMask& mask, const test::Formula& formula, const RowBlock& rows,
                KeyRange keys, bool is_exact, InstructionSet set = InstructionSet::best) {
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
    if (cover != Cover::all) mask.apply(memory.tile);
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
void check_mask(const AnyMask& mask, const test::Formula& formula, const Shapes& s, bool is_exact) {
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

/// The shapes that broadcast to the scores: each axis full or 1.
inline std::vector<Shape4> broadcast_shapes(const Shapes& s) {
  std::vector<Shape4> shapes;
  for (int bits = 0; bits < 16; ++bits) {
    shapes.push_back({bits & 1 ? s.batch : 1, bits & 2 ? s.heads : 1, bits & 4 ? s.queries : 1,
                      bits & 8 ? s.keys : 1});
  }
  return shapes;
}

/// The entry of a broadcast tensor.
template <class T>
T broadcast_at(const test::TestTensor<T>& tensor, Index b, Index h, Index i, Index j) {
  const Shape4& s = tensor.shape();
  return tensor(s.batch == 1 ? 0 : b, s.heads == 1 ? 0 : h, s.length == 1 ? 0 : i,
                s.dim == 1 ? 0 : j);
}

inline constexpr Shapes kDistinct{2, 3, 4, 5,
                                  1};  // no two alike, so that swapped axes cannot cancel

/// A bias of which a fifth drops its keys.
template <class T>
test::TestTensor<T> random_bias(const Shape4& shape, test::Layout layout) {
  test::TestTensor<T> bias(shape, layout);
  bias.fill([&](Index b, Index h, Index i, Index j) {
    const double x = test::uniform(6, test::linear_index(shape, b, h, i, j));
    return x > 0.6 ? -test::infinity<T>() : test::to<T>(4 * x);
  });
  return bias;
}
template <class T>
test::Formula formula_of(const test::TestTensor<T>& bias) {
  const auto at = [&bias](Index b, Index h, Index i, Index j) {
    return static_cast<double>(test::widen(broadcast_at(bias, b, h, i, j)));
  };
  return test::keeps([at](Index b, Index h, Index i, Index j) { return at(b, h, i, j) > -1e300; }) &
         test::changes([at](auto score, Index b, Index h, Index i, Index j) {
           return score + static_cast<decltype(score)>(at(b, h, i, j));
         });
}

}  // namespace attn

// attn/detail/call/tile_plan.hpp - level 5: how the score matrix of a group is cut into tiles.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// How one group is cut. A pure function of shapes, so that bits depend on shapes alone: never of
/// the number of threads, the batch size or the contents.
struct TilePlan {
  bool rows_are_lanes = false;  ///< one vector lane a row (prefill); else one a key or dim
  Index row_tile = 0;           ///< rows whose scores are held at the same time
  Index row_block = 0;          ///< rows that share each fetched K/V tile: a work item
  Index key_tile = 0;           ///< keys of a tile; tiles begin at multiples of it
  Index key_split = 0;          ///< keys of a work item; a multiple of key_tile
};

}  // namespace ATTN_ENGINE
inline namespace ATTN_BUILD {

/// Up to so many keys count as few; see plan_tiles.
inline constexpr Index kFewKeys = 128;
/// The keys of groups of more rows are not split.
inline constexpr Index kRowsOfSplits = 128;
/// The most keys of a work item whose keys are split; see keys_of_split.
inline constexpr Index kLargestSplit = 4096;

/// Keys of a work item where a group has up to 128 rows: a power of two. The keys are split, so
/// that one sequence can use several threads. 4096 keys of dim 128 are 4 MiB of float K and V, far
/// above the cost of merging two partial results. More rows take fewer keys for as much work, 8
/// million products each of scores and outputs; but 1024, and 32 a row, so that partial results
/// stay below 2 % of the keys and values that they come from. Still more rows are work items
/// enough.
inline Index keys_of_split(Index rows, Index dims) {
  constexpr Index kWork = Index{1} << 23, kSmallestSplit = 1024, kKeysOfRow = 32;
  Index keys = kLargestSplit;
  while (keys > kSmallestSplit && keys / 2 >= kKeysOfRow * rows &&
         keys / 2 * rows >= kWork / dims) {
    keys /= 2;
  }
  return keys;
}

/// `rows`: rows of the group (its query heads times Sq); `lanes`, `row_tile`: the kernel table's;
/// `key_tile`: of heads that are not very wide.
ATTN_NEVER_INLINE inline TilePlan plan_tiles(Index rows, Index key_length, Index key_dim,
                                             Index value_dim, Index lanes, Index row_tile,
                                             Index key_tile = 128) {
  TilePlan plan;
  const Index dims = (std::max)(Index{1}, key_dim + value_dim);
  // With few rows most lanes of a row-per-lane tile would idle, and a scalar of K or V that is
  // broadcast to one vector only costs as much as its arithmetic: dot products over dim are faster.
  // Against one tile of keys or less, they lose that to what each row costs by itself.
  plan.rows_are_lanes = rows >= 16 && (rows >= 2 * lanes || key_length <= kFewKeys);
  // 128 keys x 48 rows of float scores are 24 KiB: they stay in L1 between the stages (64 to 192
  // keys measured alike). Very wide heads get fewer keys, so that converted K/V tiles stay bounded.
  plan.key_tile = dims <= 1024 ? key_tile : dims <= 2048 ? 64 : 32;
  // Few rows read each tile of K and V from memory in one go, and to begin anew costs time. These
  // leave their scores in L1, K and V in L2.
  if (rows <= 8 && dims <= 512) plan.key_tile = dims <= 256 ? 512 : 256;
  const Index all_keys = (std::max)(Index{1}, ceil_div(key_length, plan.key_tile)) * plan.key_tile;
  if (plan.rows_are_lanes) {
    plan.row_tile = row_tile;
    // Queries and outputs of a block stay within 384 KiB of float, next to the K/V tile in L2.
    // Eight tiles share each K/V tile: one at a time loses 11 points of peak at 4096 keys.
    const Index tiles = (std::min)(Index{8}, 96 * 1024 / dims / row_tile);
    plan.row_block = (std::max)(Index{1}, tiles) * row_tile;
  } else {
    plan.row_tile = plan.row_block = rows;
  }
  plan.key_split =
      rows <= kRowsOfSplits ? (std::min)(all_keys, keys_of_split(rows, dims)) : all_keys;
  return plan;
}

/// The same for the matrix form. 256 keys make chains of 8 products for each load and store of the
/// outputs, and with the 32 rows of one product their scores are 32 KiB, which stay in L1: with the
/// products left out, the rest takes a tenth less time than with 64 rows, a quarter less under a
/// causal mask at 1024 keys. By AVX512_BF16 (Zen 4) a whole call takes about as long with 128
/// or 512 keys or 64 rows. How AMX likes it was not measured.
inline TilePlan plan_matrix_tiles(Index rows, Index key_length, Index key_dim, Index value_dim,
                                  Index lanes) {
  TilePlan plan = plan_tiles(rows, key_length, key_dim, value_dim, lanes, 32,
                             key_dim + value_dim <= 512 ? 256 : 128);
  plan.row_block *= 2;  // packed keys and values are shared by more rows
  return plan;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

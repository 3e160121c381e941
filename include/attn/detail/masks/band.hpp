// attn/detail/masks/band.hpp - level 6: keys within a distance of the query, or between two places.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Keys position - left .. position + right, both ends counted. The arithmetic saturates far
/// outside every real length, so that no sum overflows.
struct Band {
  static constexpr Index kFar = Index{1} << (sizeof(Index) * 8 - 4);
  Index left, right;

  static constexpr Band of(Index left, Index right) {
    return {left > kFar ? kFar : left, right > kFar ? kFar : right};
  }
  bool allows(const ScorePosition& at) const {
    return at.key >= at.query_position - left && at.key <= at.query_position + right;
  }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return KeyRange{0, key_length} &
           KeyRange{rows.position_begin() - left, rows.position_end() + right};
  }
  RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    if (keys.empty()) return {};
    if (rows.crosses_heads()) return {0, rows.count};
    // Positions keys.begin - right .. keys.end - 1 + left see some of them.
    const Index first = rows.position_begin();
    return RowRange{0, rows.count} & RowRange{keys.begin - right - first, keys.end + left - first};
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const {
    const Index first = rows.position_begin(), last = rows.position_end() - 1;
    if (keys.end - 1 < first - left || keys.begin > last + right) return Cover::none;
    return keys.begin >= last - left && keys.end - 1 <= first + right ? Cover::all : Cover::partial;
  }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    const KeyRange keys = tile.keys;
    tile.rows.for_each_run([&](Index begin, Index end, Index, Index query) {
      const Index position = query + tile.rows.query_offset;
      if (tile.lines_are_keys()) {
        // Of the rows of this run, key j is seen by those at positions j - right .. j + left.
        for (Index key = keys.begin; key < keys.end; ++key) {
          const Index low = clamp(key - right - position, end - begin);
          const Index high = clamp(key + left + 1 - position, end - begin);
          A* const line = &tile(begin, key);
          fill_absent(line, low);
          fill_absent(line + (std::max)(low, high), end - begin - (std::max)(low, high));
        }
      } else {
        for (Index row = begin; row < end; ++row) {
          const Index at = position + row - begin;
          const Index low = clamp(at - left - keys.begin, keys.size());
          const Index high = clamp(at + right + 1 - keys.begin, keys.size());
          A* const line = &tile(row, keys.begin);
          fill_absent(line, low);
          fill_absent(line + (std::max)(low, high), keys.size() - (std::max)(low, high));
        }
      }
    });
  }

 private:
  static Index clamp(Index value, Index size) {
    return value < 0 ? 0 : value > size ? size : value;
  }
};

/// Drops the keys of a tile but those of `kept`, for all its rows.
template <class A>
void drop_outside(const ScoreTile<A>& tile, KeyRange kept) {
  const Index begin = tile.keys.begin, rows = tile.rows.count;
  kept = kept & tile.keys;
  if (kept.empty()) kept = {begin, begin};
  if (tile.lines_are_keys()) {
    for (Index key = begin; key < tile.keys.end; ++key) {
      if (key < kept.begin || key >= kept.end) fill_absent(&tile(0, key), rows);
    }
  } else {
    for (Index row = 0; row < rows; ++row) {
      A* const line = &tile(row, begin);
      fill_absent(line, kept.begin - begin);
      fill_absent(line + (kept.end - begin), tile.keys.end - kept.end);
    }
  }
}

/// Keys `kept`, the same for every query.
struct KeySpan {
  KeyRange kept;

  bool allows(const ScorePosition& at) const { return at.key >= kept.begin && at.key < kept.end; }
  KeyRange key_range(Index key_length) const { return KeyRange{0, key_length} & kept; }
  RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return {0, (keys & kept).empty() ? 0 : rows.count};
  }
  Cover cover(KeyRange keys) const {
    const KeyRange seen = keys & kept;
    return seen.empty() ? Cover::none : seen.size() == keys.size() ? Cover::all : Cover::partial;
  }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    drop_outside(tile, kept);
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/masks/segment_ids.hpp - level 6: the segments that tokens belong to.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class T>
constexpr void require_ids() {
  static_assert(std::is_same_v<std::remove_const_t<T>, std::int32_t>,
                "attn: the ids of same_segment are std::int32_t");
}

/// The segments of some tokens: those from `low` to `high`, if any.
struct SegmentRange {
  static constexpr std::int32_t kNone = (std::numeric_limits<std::int32_t>::max)();
  std::int32_t low = kNone, high = -1;
  bool has_strays = false;  ///< tokens of no segment

  bool meets(const SegmentRange& other) const { return low <= other.high && other.low <= high; }
  bool is_one() const { return low == high && !has_strays; }
  bool holds(std::int32_t id) const { return id >= low && id <= high; }
};

/// The ids of the tokens of one batch, of a view [B|1, 1, S, 1]. A token whose id is negative
/// belongs to no segment.
struct SegmentIds {
  const std::int32_t* first;
  Index stride;

  SegmentIds(const TensorRef& view, Index batch)
      : first(static_cast<const std::int32_t*>(view.data) + batch * view.stride.batch),
        stride(view.stride.length) {}

  std::int32_t operator[](Index token) const { return first[token * stride]; }

  SegmentRange range(IndexRange tokens) const {
    using Unsigned = std::uint32_t;
    Unsigned low = static_cast<Unsigned>(SegmentRange::kNone);  // negative ids lie above
    std::int32_t high = -1, all = 0;
    for (Index token = tokens.begin; token < tokens.end; ++token) {
      const std::int32_t id = (*this)[token];
      low = static_cast<Unsigned>(id) < low ? static_cast<Unsigned>(id) : low;
      high = id > high ? id : high;
      all |= id;
    }
    return {static_cast<std::int32_t>(low), high, all < 0};
  }
  /// `tokens` without those at both ends whose segments lie outside `segments`.
  IndexRange trim(IndexRange tokens, const SegmentRange& segments) const {
    while (!tokens.empty() && !segments.holds((*this)[tokens.begin])) ++tokens.begin;
    while (!tokens.empty() && !segments.holds((*this)[tokens.end - 1])) --tokens.end;
    return tokens;
  }
};

/// Queries and keys by their segments: what same_segment answers. Questions read each id of their
/// rows and keys once, little beside the rows x keys x dim of a tile.
struct SegmentPair {
  SegmentIds queries, keys;

  /// Calls f(first row, first query, count) for the rows of each head.
  template <class F>
  static void for_each_head(const RowBlock& rows, const F& f) {
    rows.for_each_run(
        [&](Index begin, Index end, Index, Index query) { f(begin, query, end - begin); });
  }

  KeyRange keys_within(const RowBlock& rows, KeyRange within) const {
    // Of more keys than any tile has, the tiles are asked.
    constexpr Index kMost = 1024;
    if (within.size() > kMost) return within;
    KeyRange seen;
    for_each_head(rows, [&](Index, Index query, Index count) {
      seen = seen | keys.trim(within, queries.range({query, query + count}));
    });
    return seen;
  }
  RowRange row_range(const RowBlock& rows, KeyRange of_keys) const {
    const SegmentRange segments = keys.range(of_keys);
    RowRange seeing;
    for_each_head(rows, [&](Index begin, Index query, Index count) {
      const IndexRange those = queries.trim({query, query + count}, segments);
      if (those.empty()) return;
      const Index shift = begin - query;
      seeing = seeing | RowRange{those.begin + shift, those.end + shift};
    });
    return seeing;
  }
  Cover cover(const RowBlock& rows, KeyRange of_keys) const {
    const SegmentRange segments = keys.range(of_keys);
    bool any = false, all = segments.is_one();
    for_each_head(rows, [&](Index, Index query, Index count) {
      const SegmentRange those = queries.range({query, query + count});
      any = any || those.meets(segments);
      all = all && those.is_one() && those.low == segments.low;
    });
    return !any ? Cover::none : all ? Cover::all : Cover::partial;
  }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    for_each_head(tile.rows, [&](Index begin, Index query, Index count) {
      const KeyRange those = tile.keys;
      A* const first = &tile(begin, those.begin);
      if (tile.lines_are_keys()) {
        keep_equal(first, tile.key_stride, keys, those, queries, {query, query + count});
      } else {
        keep_equal(first, tile.row_stride, queries, {query, query + count}, keys, those);
      }
    });
  }

 private:
  /// Drops the scores of a line of adjacent scores, a token each, that are not of segment `id`.
  template <class A>
  static void keep_equal(A* scores, std::int32_t id, const std::int32_t* ids, Index count) {
    const A absent = negative_infinity<A>();
    constexpr Index kStep = 8;  // see fill_absent
    for (; count >= kStep; count -= kStep, scores += kStep, ids += kStep) {
      for (Index i = 0; i < kStep; ++i) scores[i] = ids[i] == id ? scores[i] : absent;
    }
    for (Index i = 0; i < count; ++i) scores[i] = ids[i] == id ? scores[i] : absent;
  }
  /// The same for lines, one a token, `stride` apart.
  template <class A>
  static void keep_equal(A* scores, Index stride, const SegmentIds& line_ids, IndexRange lines,
                         const SegmentIds& entry_ids, IndexRange entries) {
    constexpr Index kMost = 64;
    std::int32_t ids[kMost];
    for (Index entry = entries.begin; entry < entries.end; entry += kMost) {
      const Index count = (std::min)(kMost, entries.end - entry);
      for (Index i = 0; i < count; ++i) ids[i] = entry_ids[entry + i];
      A* line = scores + (entry - entries.begin);
      for (Index token = lines.begin; token < lines.end; ++token, line += stride) {
        if (line_ids[token] < 0) {
          fill_absent(line, count);
        } else {
          keep_equal(line, line_ids[token], ids, count);
        }
      }
    }
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/masks/segments.hpp - level 7: tokens that see those of their own segment: packed documents,
// images within text.
#pragma once

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/masks/segment_ids.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// Key j is seen by query i if both have the same id, and it is not negative.
class SegmentMask : public Mask {
 public:
  /// One id a token, of queries and keys alike.
  template <class T>
  ATTN_ALWAYS_INLINE explicit SegmentMask(const Tensor4<T>& ids)
      : queries_(ids), keys_(ids), is_one_view_(true) {
    detail::require_ids<T>();
  }
  template <class Q, class K>
  ATTN_ALWAYS_INLINE SegmentMask(const Tensor4<Q>& query_ids, const Tensor4<K>& key_ids)
      : queries_(query_ids), keys_(key_ids), is_one_view_(false) {
    detail::require_ids<Q>();
    detail::require_ids<K>();
  }

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    const detail::SegmentPair pair = ids(at.batch);
    return pair.queries[at.query] >= 0 && pair.queries[at.query] == pair.keys[at.key];
  }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys, Index) const {
    return ids(rows.batch).keys_within(rows, keys);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return ids(rows.batch).row_range(rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return ids(rows.batch).cover(rows, keys);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    ids(tile.rows.batch).apply(tile);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    if (is_one_view_) {
      checker.check_shared_ids("same_segment ids", queries_);
    } else {
      checker.check_ids("same_segment query_ids", queries_, false);
      checker.check_ids("same_segment key_ids", keys_, true);
    }
  }

 private:
  ATTN_ALWAYS_INLINE detail::SegmentPair ids(Index batch) const {
    return {detail::SegmentIds(queries_, batch), detail::SegmentIds(keys_, batch)};
  }

  detail::TensorRef queries_, keys_;
  bool is_one_view_;
};

/// Tokens see those of their own segment: same_segment(ids) where queries and keys are the same
/// tokens (Sq = Sk), else same_segment(query_ids, key_ids).
///
///   ids         [B|1, 1, S, 1] of std::int32_t, Sq = Sk = S; any strides
///   query_ids   [B|1, 1, Sq, 1]
///   key_ids     [B|1, 1, Sk, 1]
///
/// A token whose id is negative belongs to no segment: it sees no key by this mask, and is seen by
/// none. Documents packed into one sequence: same_segment(documents) & causal(). Images within
/// text, each seen whole by its tokens: causal() | same_segment(images), with -1 for tokens of
/// text.
///
/// Cost: a tile reads each id of its rows and keys a few times; ids that rise along the sequence
/// skip all other segments, ids in any other order skip the tiles whose ranges of ids do not meet.
template <class T>
ATTN_ALWAYS_INLINE SegmentMask same_segment(const Tensor4<T>& ids) {
  return SegmentMask(ids);
}
template <class Q, class K>
ATTN_ALWAYS_INLINE SegmentMask same_segment(const Tensor4<Q>& query_ids,
                                            const Tensor4<K>& key_ids) {
  return SegmentMask(query_ids, key_ids);
}

// Buffers serve as their views, and outlive the mask: a temporary does not compile.
template <class T>
ATTN_ALWAYS_INLINE SegmentMask same_segment(const Tensor4Buffer<T>& ids) {
  return SegmentMask(ids.view());
}
template <class T>
SegmentMask same_segment(const Tensor4Buffer<T>&&) = delete;
template <class Q, class K>
ATTN_ALWAYS_INLINE SegmentMask same_segment(const Tensor4Buffer<Q>& query_ids,
                                            const Tensor4Buffer<K>& key_ids) {
  return SegmentMask(query_ids.view(), key_ids.view());
}
template <class Q, class K>
SegmentMask same_segment(const Tensor4Buffer<Q>&&, const Tensor4Buffer<K>&) = delete;
template <class Q, class K>
SegmentMask same_segment(const Tensor4Buffer<Q>&, const Tensor4Buffer<K>&&) = delete;
template <class Q, class K>
SegmentMask same_segment(const Tensor4Buffer<Q>&&, const Tensor4Buffer<K>&&) = delete;

}  // namespace attn

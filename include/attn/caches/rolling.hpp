// attn/caches/rolling.hpp - level 11: a cache that holds the last tokens of endless sequences.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attn/caches/cache_shape.hpp"
#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/caches/cache_storage.hpp"
#include "attn/detail/caches/reorder.hpp"
#include "attn/detail/caches/rolling_mask.hpp"
#include "attn/detail/caches/stored_tokens.hpp"
#include "attn/detail/caches/token_cache.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// A cache under a sliding window: a query at position p sees the keys p - window + 1 .. p (those
/// behind p too, unless the call's mask is causal), and what no query will see again is
/// overwritten. Attending to it is attending to all tokens so far with `mask &
/// sliding_window(window - 1, kUnlimited)`, to the bit; positions stay absolute, so that length(b)
/// counts evicted tokens too. The windows of the last longest_append tokens are held, and of the
/// whole of the last append. A query that stands before them is a ShapeError, unless the call's
/// mask hides what it would miss. (So do queries of padding on the left: longest_append counts it.)
///
/// The ring has room for window + longest_append - 1 tokens, so that of longest_append new queries
/// the first finds its whole window too, and as many tokens less one can be taken back. A longer
/// append makes the ring grow (its only allocation), and is as exact.
///
/// With first_tokens, so many stay for ever and are seen by every query as well, whatever the
/// window ("attention sinks"; the call's mask still applies): what a call over all tokens does
/// under `mask & (sliding_window(window - 1, kUnlimited) | first_keys(first_tokens))`, to the bit,
/// in at most a tenth more time than without them. Positions, of ALiBi and of a layer's step too,
/// are the stream's. A model with a rotary embedding that numbers positions within the cache sees
/// the first tokens right before the window: a query at p > first_tokens + window - 1 stands at
/// first_tokens + window - 1 towards them, and at p towards the window, where distances are the
/// same. No key needs turning: attend twice, to first_keys with queries turned to the one and to
/// the others with queries turned to the other, and merge_attention (examples/endless_stream.cpp).
/// Cost: a second turn of the queries, and a merge. Source: G. Xiao et al., "Efficient streaming
/// language models with attention sinks" (2023).
///
/// To save a stream: lengths(), num_held(b) of each sequence, and what save(k, v) writes; restore()
/// takes them into any rolling cache of the same sizes.
template <class T>
class RollingKeyValueCache : public detail::TokenCache<RollingKeyValueCache<T>, T> {
  using Base = detail::TokenCache<RollingKeyValueCache<T>, T>;
  friend Base;
  friend detail::StoredTokens<RollingKeyValueCache<T>, T>;

 public:
  ATTN_ALWAYS_INLINE RollingKeyValueCache() = default;
  /// Of the shape's batch, num_kv_heads, head_dim, value_dim, window and longest_append. Throws
  /// ShapeError unless those are given alone, window and longest_append 1 or more, the others 0 or
  /// more, and small enough.
  ATTN_ALWAYS_INLINE explicit RollingKeyValueCache(const CacheShape& shape)
      : RollingKeyValueCache(shape, storage_of(shape)) {}
  ATTN_ALWAYS_INLINE RollingKeyValueCache(Index batch, Index num_kv_heads, Index window,
                                          Index head_dim, Index value_dim, Index longest_append = 1)
      : RollingKeyValueCache(
            named(batch, num_kv_heads, window, head_dim, value_dim, longest_append)) {}
  ATTN_ALWAYS_INLINE RollingKeyValueCache(Index batch, Index num_kv_heads, Index window,
                                          Index head_dim)
      : RollingKeyValueCache(batch, num_kv_heads, window, head_dim, head_dim) {}

  ATTN_ALWAYS_INLINE RollingKeyValueCache(const RollingKeyValueCache&) = default;
  ATTN_ALWAYS_INLINE ~RollingKeyValueCache() = default;
  ATTN_ALWAYS_INLINE RollingKeyValueCache(RollingKeyValueCache&& other) noexcept { swap(other); }
  /// Where it throws std::bad_alloc, nothing has changed.
  ATTN_ALWAYS_INLINE RollingKeyValueCache& operator=(const RollingKeyValueCache& other) {
    return *this = RollingKeyValueCache(other);
  }
  ATTN_ALWAYS_INLINE RollingKeyValueCache& operator=(RollingKeyValueCache&& other) noexcept {
    RollingKeyValueCache(std::move(other)).swap(*this);
    return *this;
  }
  ATTN_ALWAYS_INLINE void swap(RollingKeyValueCache& other) noexcept {
    Base::swap(other);
    std::swap(window_, other.window_);
    std::swap(first_tokens_, other.first_tokens_);
    std::swap(kept_, other.kept_);
    keys_.swap(other.keys_);
    values_.swap(other.values_);
    first_held_.swap(other.first_held_);
  }

  /// Keys that a query sees, its own among them.
  ATTN_ALWAYS_INLINE Index window() const { return window_; }
  /// Tokens that stay for ever.
  ATTN_ALWAYS_INLINE Index first_tokens() const { return first_tokens_; }
  /// Tokens behind those that there is room for.
  ATTN_ALWAYS_INLINE Index ring() const { return keys_.shape().length - first_tokens_; }
  /// The most keys that a sequence can ever hold at a time: the first tokens and the ring's, unless
  /// a longer append makes it grow.
  ATTN_ALWAYS_INLINE Index held_capacity() const { return keys_.shape().length; }
  /// The first token of sequence b that is still held, beside those that stay for ever; 0 as long
  /// as all are.
  ATTN_ALWAYS_INLINE Index first_held(Index b) const {
    return first_held_[static_cast<std::size_t>(b)];
  }

  /// The storage: [B, Hk, first_tokens + ring, Dk] and [B, Hv, first_tokens + ring, Dv], token t in
  /// row t if t < first_tokens, else in row first_tokens + (t - first_tokens) % ring.
  ATTN_ALWAYS_INLINE Tensor4<const T> keys() const { return keys_.view(); }
  ATTN_ALWAYS_INLINE Tensor4<const T> values() const { return value_storage(); }

  /// What the kernel reads.
  ATTN_ALWAYS_INLINE detail::KeyValueSource source() const {
    detail::KeyValueSource source =
        Base::source_from(Base::per_batch(first_held_), held_capacity());
    source.first_keys = first_tokens_;
    return source;
  }
  static constexpr bool kForgets = true;
  ATTN_ALWAYS_INLINE Index first_held_after(Index b, Index count) const {
    const Index grown = (std::max)(ring(), window_ + count - 1);
    return first_behind(b, Base::length(b) + count - grown);
  }
  template <class M>
  ATTN_ALWAYS_INLINE auto mask_with(const M& mask) const {
    return mask & detail::RollingMask(window_, first_tokens_);
  }

 private:
  static constexpr detail::CacheFunctions kFunctions{
      "RollingKeyValueCache::append",   "RollingKeyValueCache::append_to",
      "RollingKeyValueCache::truncate", "RollingKeyValueCache::reset",
      "RollingKeyValueCache::reorder",  "RollingKeyValueCache::save",
      "RollingKeyValueCache::restore",  "RollingKeyValueCache::keep_tokens"};

  ATTN_ALWAYS_INLINE RollingKeyValueCache(const CacheShape& shape,
                                          const detail::CacheStorage& storage)
      : Base(shape.batch, storage.value_columns),
        window_(shape.window),
        first_tokens_(shape.first_tokens),
        kept_(storage.keys.length - shape.first_tokens),
        keys_(storage.keys),
        values_(storage.values),
        first_held_(static_cast<std::size_t>(shape.batch)) {}

  ATTN_ALWAYS_INLINE static CacheShape named(Index batch, Index num_kv_heads, Index window,
                                             Index head_dim, Index value_dim,
                                             Index longest_append) {
    CacheShape shape;
    shape.batch = batch;
    shape.num_kv_heads = num_kv_heads;
    shape.window = window;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.longest_append = longest_append;
    return shape;
  }
  ATTN_ALWAYS_INLINE static detail::CacheStorage storage_of(const CacheShape& shape) {
    if (shape.window < 1 || shape.longest_append < 1 || shape.capacity ||
        detail::has_pages(shape)) {
      detail::raise_cache_shape(
          "RollingKeyValueCache",
          "takes a window and a longest_append of 1 or more, and no capacity or pages", shape);
    }
    return detail::cache_storage(
        "RollingKeyValueCache", shape, shape.batch,
        detail::CheckedSize(shape.first_tokens) + shape.window + (shape.longest_append - 1),
        Base::kSequenceBytes + Index{sizeof(Index)}, sizeof(T));
  }

  ATTN_ALWAYS_INLINE Tensor4<T> key_storage() { return keys_.view(); }
  ATTN_ALWAYS_INLINE Tensor4<T> value_storage() {
    return Base::values_of(key_storage(), values_.view());
  }
  ATTN_ALWAYS_INLINE Tensor4<const T> key_storage() const { return keys_.view(); }
  ATTN_ALWAYS_INLINE Tensor4<const T> value_storage() const {
    return Base::values_of(key_storage(), values_.view());
  }
  ATTN_ALWAYS_INLINE detail::KeyMap key_map() const {
    detail::KeyMap map;
    map.order = detail::KeyMap::Order::ring;
    map.first_rows = first_tokens_;
    return map;
  }

  ATTN_ALWAYS_INLINE Index longest_sequence() const { return (std::numeric_limits<Index>::max)(); }
  ATTN_ALWAYS_INLINE Index needed(Index length) const {
    return (std::min)(length, first_tokens_ + window_);
  }
  ATTN_ALWAYS_INLINE void resume(Index b, Index length, Index count) {
    const bool holds_all = count == length && length <= held_capacity();
    first_held_[static_cast<std::size_t>(b)] =
        holds_all ? 0 : length - (std::min)(count - first_tokens_, ring());
  }
  ATTN_ALWAYS_INLINE void make_room(const detail::CallShapes& call, Index first, Index sequences,
                                    const PerBatch& counts) {
    Index longest = 0;
    for (Index i = 0; i < sequences; ++i) {
      longest = (std::max)(longest, counts[i]);
      // Positions are counted without end, but in an Index.
      detail::require_room(call, first + i, Base::length(first + i), counts[i], longest_sequence());
    }
    if (window_ + longest - 1 > ring()) {
      const Index rows = first_tokens_ + window_ + longest - 1;
      Tensor4Buffer<T> keys = moved(keys_, rows), values = moved(values_, rows);
      keys_ = std::move(keys);
      values_ = std::move(values);
    }
    for (Index b = first; b < first + sequences; ++b) {
      first_held_[static_cast<std::size_t>(b)] = first_held_after(b, counts[b - first]);
    }
  }
  /// What is held of `from`, in more rows.
  ATTN_ALWAYS_INLINE Tensor4Buffer<T> moved(const Tensor4Buffer<T>& from, Index rows) const {
    const Shape4& s = from.shape();
    Tensor4Buffer<T> to(Shape4{s.batch, s.heads, rows, s.dim});
    const detail::KeyMap map = key_map();
    for (Index b = 0; b < s.batch; ++b) {
      for_each_held(b, [&](KeyRange tokens) {
        for (Index head = 0; head < s.heads; ++head) {
          for (Index t = tokens.begin; t < tokens.end; ++t) {
            for (Index d = 0; d < s.dim; ++d) {
              to(b, head, map.ring_row(rows, t), d) = from(b, head, map.ring_row(s.length, t), d);
            }
          }
        }
      });
    }
    return to;
  }

  // Decided by lengths alone: a ring that has grown takes no more back than one that has not.
  ATTN_ALWAYS_INLINE Index first_kept(Index b) const {
    return first_behind(b, Base::length(b) - kept_);
  }
  /// The first token that is held where those between the first ones and `token` are let go.
  ATTN_ALWAYS_INLINE Index first_behind(Index b, Index token) const {
    return token > first_tokens_ ? (std::max)(first_held(b), token) : first_held(b);
  }
  ATTN_ALWAYS_INLINE void check_cut(const PerBatch& length) const {
    for (Index b = 0; b < Base::batch(); ++b) check_window(kFunctions.truncate, b, length[b]);
  }
  ATTN_ALWAYS_INLINE Index first_movable(Index b) const { return first_kept(b); }
  ATTN_ALWAYS_INLINE void check_moves(Index b, Index, Index length) const {
    check_window(kFunctions.keep_tokens, b, length);
  }
  ATTN_ALWAYS_INLINE void check_window(const char* function, Index b, Index length) const {
    const Index oldest = first_kept(b);
    const Index first_seen = (std::max)(first_tokens_, length - window_);
    if (oldest > first_tokens_ && first_seen < oldest && first_seen < length) {
      detail::raise_shape_error(
          std::string(function) + ": sequence " + std::to_string(b) + " of " +
          std::to_string(Base::length(b)) + " tokens cannot be cut to " + std::to_string(length) +
          ": the window of " + std::to_string(window_) + " tokens would reach back behind token " +
          std::to_string(oldest) + ", the first that is kept (a larger longest_append keeps more)");
    }
  }
  ATTN_ALWAYS_INLINE void cut(Index b, Index length) {
    if (length == Base::length(b)) return;
    first_held_[static_cast<std::size_t>(b)] = length <= first_tokens_ ? 0 : first_kept(b);
  }

  template <class F>
  ATTN_ALWAYS_INLINE void for_each_held(Index b, const F& f) const {
    if (first_held(b) <= first_tokens_) {
      f(KeyRange{0, Base::length(b)});
      return;
    }
    if (first_tokens_ > 0) f(KeyRange{0, first_tokens_});
    f(KeyRange{first_held(b), Base::length(b)});
  }
  ATTN_ALWAYS_INLINE void copy_sequence(Index from, Index to) {
    Base::copy_sequence(from, to);
    first_held_[static_cast<std::size_t>(to)] = first_held(from);
  }
  ATTN_ALWAYS_INLINE void rotate_sequences(Span<const Index> parents, Index first) {
    Base::rotate_sequences(parents, first);
    detail::rotate_numbers(first_held_.data(), 1, 1, parents, first);
  }

  Index window_ = 1;
  Index first_tokens_ = 0;
  Index kept_ = 1;  // tokens behind the first ones that can be relied on
  Tensor4Buffer<T> keys_, values_;
  std::vector<Index> first_held_;
};

}  // namespace attn

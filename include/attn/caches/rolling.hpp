// attn/caches/rolling.hpp - level 11: a cache that holds the last tokens of endless sequences.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/caches/token_cache.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// A cache under a sliding window: a query at position p sees the keys p - window + 1 .. p (those
/// behind p too, unless the call's mask is causal), and what no query will see again is
/// overwritten. Attending to it is attending to all tokens so far with `mask &
/// sliding_window(window - 1, kUnlimited)`, to the bit; positions stay absolute, so that length(b)
/// counts evicted tokens too. The windows of the last longest_append tokens are held, and of the
/// whole of the last append. A query that stands before them is a ShapeError, unless the call's
/// mask hides what it would miss. (So do queries of padding on the left: longest_append counts it.)
///
/// Token t lies in row t % ring() of [B, Hk, ring, Dk] and [B, Hv, ring, Dv]. The ring has room for
/// window + longest_append - 1 tokens, so that of longest_append new queries the first finds its
/// whole window too, and as many tokens less one can be taken back. A longer append makes the ring
/// grow (its only allocation), and is as exact.
template <class T>
class RollingKeyValueCache : public detail::TokenCache<RollingKeyValueCache<T>, T> {
  using Base = detail::TokenCache<RollingKeyValueCache<T>, T>;
  friend Base;

 public:
  RollingKeyValueCache() = default;
  /// Throws ShapeError for a window or longest_append below 1, or another extent below 0.
  ATTN_ALWAYS_INLINE RollingKeyValueCache(Index batch, Index num_kv_heads, Index window,
                                          Index head_dim, Index value_dim, Index longest_append = 1)
      : Base(batch),
        window_(window),
        kept_(ring_for(window, longest_append)),
        keys_(Shape4{batch, num_kv_heads, kept_, head_dim}),
        values_(Shape4{batch, num_kv_heads, kept_, value_dim}),
        first_held_(static_cast<std::size_t>(batch)) {}
  ATTN_ALWAYS_INLINE RollingKeyValueCache(Index batch, Index num_kv_heads, Index window,
                                          Index head_dim)
      : RollingKeyValueCache(batch, num_kv_heads, window, head_dim, head_dim) {}

  /// Keys that a query sees, its own among them.
  Index window() const { return window_; }
  /// Tokens that there is room for.
  Index ring() const { return keys_.shape().length; }
  /// The first token of sequence b that is still held.
  Index first_held(Index b) const { return first_held_[static_cast<std::size_t>(b)]; }

  /// The storage: [B, Hk, ring, Dk] and [B, Hv, ring, Dv], token t in row t % ring.
  Tensor4<const T> keys() const { return keys_.view(); }
  Tensor4<const T> values() const { return values_.view(); }

  /// What the kernel reads.
  detail::KeyValueSource source() const {
    return Base::source_from(Base::per_batch(first_held_), ring());
  }
  Index first_held_after(Index b, Index count) const {
    const Index grown = (std::max)(ring(), window_ + count - 1);
    return (std::max)(first_held(b), Base::length(b) + count - grown);
  }
  template <class M>
  auto mask_with(const M& mask) const {
    return mask & sliding_window(window_ - 1, kUnlimited);
  }

 private:
  static constexpr detail::CacheFunctions kFunctions{
      "RollingKeyValueCache::append", "RollingKeyValueCache::append_to",
      "RollingKeyValueCache::truncate", "RollingKeyValueCache::reset"};

  ATTN_ALWAYS_INLINE static Index ring_for(Index window, Index longest_append) {
    if (window < 1 || longest_append < 1 ||
        longest_append > (std::numeric_limits<Index>::max)() - window) {
      detail::raise_shape_error(
          "RollingKeyValueCache: window and longest_append must be 1 or more, and finite, got " +
          std::to_string(window) + " and " + std::to_string(longest_append));
    }
    return window + longest_append - 1;
  }

  Tensor4<T> key_storage() { return keys_.view(); }
  Tensor4<T> value_storage() { return values_.view(); }
  Tensor4<const T> key_storage() const { return keys_.view(); }
  Tensor4<const T> value_storage() const { return values_.view(); }
  detail::KeyMap key_map() const {
    detail::KeyMap map;
    map.order = detail::KeyMap::Order::ring;
    return map;
  }

  ATTN_ALWAYS_INLINE void make_room(const detail::CallShapes&, Index first, Index sequences,
                                    const PerBatch& counts) {
    Index longest = 0;
    for (Index i = 0; i < sequences; ++i) longest = (std::max)(longest, counts[i]);
    if (window_ + longest - 1 > ring()) {
      Tensor4Buffer<T> keys = moved(keys_, window_ + longest - 1);
      Tensor4Buffer<T> values = moved(values_, window_ + longest - 1);
      keys_ = std::move(keys);
      values_ = std::move(values);
    }
    for (Index b = first; b < first + sequences; ++b) {
      first_held_[static_cast<std::size_t>(b)] = first_held_after(b, counts[b - first]);
    }
  }
  /// What is held of `from`, in a longer ring.
  ATTN_ALWAYS_INLINE Tensor4Buffer<T> moved(const Tensor4Buffer<T>& from, Index ring) const {
    const Shape4& s = from.shape();
    Tensor4Buffer<T> to(Shape4{s.batch, s.heads, ring, s.dim});
    for (Index b = 0; b < s.batch; ++b) {
      for (Index head = 0; head < s.heads; ++head) {
        for (Index t = first_held(b); t < Base::length(b); ++t) {
          for (Index d = 0; d < s.dim; ++d) {
            to(b, head, t % ring, d) = from(b, head, t % s.length, d);
          }
        }
      }
    }
    return to;
  }

  // Decided by lengths alone: a ring that has grown takes no more back than one that has not.
  Index first_kept(Index b) const { return (std::max)(first_held(b), Base::length(b) - kept_); }
  ATTN_ALWAYS_INLINE void check_cut(const PerBatch& length) const {
    for (Index b = 0; b < Base::batch(); ++b) {
      const Index oldest = first_kept(b);
      if (length[b] > 0 && (std::max)(Index{0}, length[b] - window_) < oldest) {
        detail::raise_shape_error(
            std::string(kFunctions.truncate) + ": sequence " + std::to_string(b) + " of " +
            std::to_string(Base::length(b)) + " tokens cannot be cut to " +
            std::to_string(length[b]) + ": the window of " + std::to_string(window_) +
            " tokens would reach back behind token " + std::to_string(oldest) +
            ", the first that is kept (a larger longest_append keeps more)");
      }
    }
  }
  void cut(Index b, Index length) {
    if (length == Base::length(b)) return;
    first_held_[static_cast<std::size_t>(b)] = length == 0 ? 0 : first_kept(b);
  }

  Index window_ = 1;
  Index kept_ = 1;  // tokens that can be relied on
  Tensor4Buffer<T> keys_, values_;
  std::vector<Index> first_held_;
};

}  // namespace attn

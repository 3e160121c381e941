// attn/caches/contiguous.hpp - level 11: a cache of fixed capacity, one run of memory a sequence
// and head.
#pragma once

#include <utility>

#include "attn/caches/cache_shape.hpp"
#include "attn/config.hpp"
#include "attn/detail/caches/cache_storage.hpp"
#include "attn/detail/caches/stored_tokens.hpp"
#include "attn/detail/caches/token_cache.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// The keys and values of the tokens so far: [B, Hk, capacity, Dk] and [B, Hv, capacity, Dv]
/// elements of T, of which sequence b holds the first length(b).
///
/// T is double, float, Eigen::half or Eigen::bfloat16, whatever the type of the queries; what is
/// appended is rounded to it. What lies behind a sequence's length is never read, NaN or not. Many
/// threads may attend to one const cache. A copy of a cache copies the memory that it owns, and the
/// view of memory that it does not.
template <class T>
class KeyValueCache : public detail::TokenCache<KeyValueCache<T>, T> {
  using Base = detail::TokenCache<KeyValueCache<T>, T>;
  friend Base;
  friend detail::StoredTokens<KeyValueCache<T>, T>;

 public:
  ATTN_ALWAYS_INLINE KeyValueCache() = default;
  /// Owns its memory: of the shape's batch, num_kv_heads, head_dim, value_dim and capacity. Throws
  /// ShapeError unless those are given alone, 0 or more, and small enough.
  ATTN_ALWAYS_INLINE explicit KeyValueCache(const CacheShape& shape)
      : KeyValueCache(shape.batch, storage_of(shape)) {}
  ATTN_ALWAYS_INLINE KeyValueCache(Index batch, Index num_kv_heads, Index capacity, Index head_dim,
                                   Index value_dim)
      : KeyValueCache(named(batch, num_kv_heads, capacity, head_dim, value_dim)) {}
  ATTN_ALWAYS_INLINE KeyValueCache(Index batch, Index num_kv_heads, Index capacity, Index head_dim)
      : KeyValueCache(batch, num_kv_heads, capacity, head_dim, head_dim) {}
  /// Uses the caller's memory, of any strides: keys [B, Hk, capacity, Dk], values
  /// [B, Hv, capacity, Dv]. Throws ShapeError if they do not fit each other or overlap.
  ATTN_ALWAYS_INLINE KeyValueCache(Tensor4<T> keys, Tensor4<T> values)
      : Base(checked_batch(keys, values)), borrowed_keys_(keys), borrowed_values_(values) {}

  /// The same where values are the first value_dim elements of their keys (see
  /// CacheShape::values_in_keys). Throws ShapeError if keys have fewer.
  ATTN_ALWAYS_INLINE KeyValueCache(Tensor4<T> keys, Index value_dim)
      : Base(checked_batch(keys, value_dim), value_dim), borrowed_keys_(keys) {}

  ATTN_ALWAYS_INLINE KeyValueCache(const KeyValueCache&) = default;
  ATTN_ALWAYS_INLINE ~KeyValueCache() = default;
  ATTN_ALWAYS_INLINE KeyValueCache(KeyValueCache&& other) noexcept { swap(other); }
  /// Where it throws std::bad_alloc, nothing has changed.
  ATTN_ALWAYS_INLINE KeyValueCache& operator=(const KeyValueCache& other) {
    return *this = KeyValueCache(other);
  }
  ATTN_ALWAYS_INLINE KeyValueCache& operator=(KeyValueCache&& other) noexcept {
    KeyValueCache(std::move(other)).swap(*this);
    return *this;
  }
  ATTN_ALWAYS_INLINE void swap(KeyValueCache& other) noexcept {
    Base::swap(other);
    owned_keys_.swap(other.owned_keys_);
    owned_values_.swap(other.owned_values_);
    std::swap(borrowed_keys_, other.borrowed_keys_);
    std::swap(borrowed_values_, other.borrowed_values_);
    std::swap(owns_, other.owns_);
  }

  /// Tokens that each sequence can hold.
  ATTN_ALWAYS_INLINE Index capacity() const { return key_storage().length(); }
  /// The most keys that a sequence can ever hold at a time: the capacity.
  ATTN_ALWAYS_INLINE Index held_capacity() const { return capacity(); }

  /// The stored tokens: [B, Hk, longest length, Dk] and [B, Hv, longest length, Dv]. What lies
  /// behind the length of a shorter sequence is unspecified.
  ATTN_ALWAYS_INLINE Tensor4<const T> keys() const { return held(key_storage()); }
  ATTN_ALWAYS_INLINE Tensor4<const T> values() const { return held(value_storage()); }

  /// What the kernel reads.
  ATTN_ALWAYS_INLINE detail::KeyValueSource source() const {
    return Base::source_from(0, held_capacity());
  }

 private:
  static constexpr detail::CacheFunctions kFunctions{
      "KeyValueCache::append",  "KeyValueCache::append_to",  "KeyValueCache::truncate",
      "KeyValueCache::reset",   "KeyValueCache::reorder",    "KeyValueCache::save",
      "KeyValueCache::restore", "KeyValueCache::keep_tokens"};

  ATTN_ALWAYS_INLINE KeyValueCache(Index batch, const detail::CacheStorage& storage)
      : Base(batch, storage.value_columns),
        owned_keys_(storage.keys),
        owned_values_(storage.values),
        owns_(true) {}

  ATTN_ALWAYS_INLINE static CacheShape named(Index batch, Index num_kv_heads, Index capacity,
                                             Index head_dim, Index value_dim) {
    CacheShape shape;
    shape.batch = batch;
    shape.num_kv_heads = num_kv_heads;
    shape.capacity = capacity;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    return shape;
  }
  ATTN_ALWAYS_INLINE static detail::CacheStorage storage_of(const CacheShape& shape) {
    if (!shape.capacity || detail::has_window(shape) || detail::has_pages(shape)) {
      detail::raise_cache_shape("KeyValueCache", "takes a capacity, and no window or pages", shape);
    }
    return detail::cache_storage("KeyValueCache", shape, shape.batch, *shape.capacity,
                                 Base::kSequenceBytes, sizeof(T));
  }
  ATTN_ALWAYS_INLINE static Index checked_batch(Tensor4<T> keys, Tensor4<T> values) {
    detail::CallShapes call("KeyValueCache");
    call.add_output("keys", detail::TensorRef(keys));
    call.add_output("values", detail::TensorRef(values));
    call.expect(keys.batch() == values.batch() && keys.length() == values.length(),
                "keys and values must have the same batch and length");
    return keys.batch();
  }

  ATTN_ALWAYS_INLINE static Index checked_batch(Tensor4<T> keys, Index value_dim) {
    detail::CallShapes call("KeyValueCache");
    call.add_output("keys", detail::TensorRef(keys));
    if (value_dim < 0 || value_dim > keys.dim()) {
      call.raise_shape({"value_dim must lie within 0 and the dim of keys, got ", value_dim});
    }
    return keys.batch();
  }

  ATTN_ALWAYS_INLINE Tensor4<T> key_storage() {
    return owns_ ? owned_keys_.view() : borrowed_keys_;
  }
  ATTN_ALWAYS_INLINE Tensor4<T> value_storage() {
    return Base::values_of(key_storage(), owns_ ? owned_values_.view() : borrowed_values_);
  }
  ATTN_ALWAYS_INLINE Tensor4<const T> key_storage() const {
    return owns_ ? owned_keys_.view() : borrowed_keys_;
  }
  ATTN_ALWAYS_INLINE Tensor4<const T> value_storage() const {
    return Base::values_of(key_storage(), owns_ ? owned_values_.view() : borrowed_values_);
  }
  ATTN_ALWAYS_INLINE detail::KeyMap key_map() const { return {}; }

  ATTN_ALWAYS_INLINE Tensor4<const T> held(const Tensor4<const T>& storage) const {
    const Shape4& s = storage.shape();
    return {storage.data(), Shape4{s.batch, s.heads, Base::longest_length(), s.dim},
            storage.stride()};
  }

  ATTN_ALWAYS_INLINE Index longest_sequence() const { return capacity(); }
  ATTN_ALWAYS_INLINE void make_room(const detail::CallShapes& call, Index first, Index sequences,
                                    const PerBatch& counts) {
    for (Index i = 0; i < sequences; ++i) {
      detail::require_room(call, first + i, Base::length(first + i), counts[i], capacity());
    }
  }

  Tensor4Buffer<T> owned_keys_, owned_values_;
  Tensor4<T> borrowed_keys_, borrowed_values_;
  bool owns_ = false;
};

}  // namespace attn

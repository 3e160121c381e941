// attn/caches/paged.hpp - level 11: a cache of pages from one pool, for sequences whose lengths
// differ much and for those that begin alike.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "attn/caches/cache_shape.hpp"
#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/caches/cache_storage.hpp"
#include "attn/detail/caches/page_table.hpp"
#include "attn/detail/caches/stored_tokens.hpp"
#include "attn/detail/caches/token_cache.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/error.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// A pool of pages of page_length tokens, [num_pages, Hk, page_length, Dk] and
/// [num_pages, Hv, page_length, Dv], and for each sequence the table of its pages. A sequence takes
/// a page when it needs one and gives it back when its tokens are taken back. Sequences may share
/// the pages of a common prefix (share_prefix) or of a common parent (reorder, which copies
/// nothing); one that appends to a shared page gets its own copy first. The
/// tables take batch * capacity / page_length numbers, from the start.
///
/// The kernel reads the pages where they lie, long ones faster: pages of 256 tokens like a
/// contiguous cache, of 16 in half again its time (bench/README.md). Many threads may attend to one
/// const cache. Source of the idea: W. Kwon et al., "Efficient memory management for large language
/// model serving with PagedAttention" (2023).
template <class T>
class PagedKeyValueCache : public detail::TokenCache<PagedKeyValueCache<T>, T> {
  using Base = detail::TokenCache<PagedKeyValueCache<T>, T>;
  friend Base;
  friend detail::StoredTokens<PagedKeyValueCache<T>, T>;

 public:
  ATTN_ALWAYS_INLINE PagedKeyValueCache() = default;
  /// Of the shape's batch, num_kv_heads, head_dim, value_dim, num_pages, page_length and, if there
  /// is one, capacity. Throws ShapeError unless those are given alone, page_length 1 or more, the
  /// others 0 or more, and small enough. Appending never allocates.
  ATTN_ALWAYS_INLINE explicit PagedKeyValueCache(const CacheShape& shape)
      : PagedKeyValueCache(shape, storage_of(shape)) {}
  ATTN_ALWAYS_INLINE PagedKeyValueCache(Index num_pages, Index page_length, Index batch,
                                        Index num_kv_heads, Index head_dim, Index value_dim)
      : PagedKeyValueCache(
            named(num_pages, page_length, batch, num_kv_heads, head_dim, value_dim)) {}
  ATTN_ALWAYS_INLINE PagedKeyValueCache(Index num_pages, Index page_length, Index batch,
                                        Index num_kv_heads, Index head_dim)
      : PagedKeyValueCache(num_pages, page_length, batch, num_kv_heads, head_dim, head_dim) {}

  ATTN_ALWAYS_INLINE PagedKeyValueCache(const PagedKeyValueCache&) = default;
  ATTN_ALWAYS_INLINE ~PagedKeyValueCache() = default;
  ATTN_ALWAYS_INLINE PagedKeyValueCache(PagedKeyValueCache&& other) noexcept { swap(other); }
  /// Where it throws std::bad_alloc, nothing has changed.
  ATTN_ALWAYS_INLINE PagedKeyValueCache& operator=(const PagedKeyValueCache& other) {
    return *this = PagedKeyValueCache(other);
  }
  ATTN_ALWAYS_INLINE PagedKeyValueCache& operator=(PagedKeyValueCache&& other) noexcept {
    PagedKeyValueCache(std::move(other)).swap(*this);
    return *this;
  }
  ATTN_ALWAYS_INLINE void swap(PagedKeyValueCache& other) noexcept {
    Base::swap(other);
    keys_.swap(other.keys_);
    values_.swap(other.values_);
    std::swap(capacity_, other.capacity_);
    table_.swap(other.table_);
  }

  ATTN_ALWAYS_INLINE Index num_pages() const { return keys_.shape().batch; }
  ATTN_ALWAYS_INLINE Index page_length() const { return keys_.shape().length; }
  ATTN_ALWAYS_INLINE Index num_free_pages() const { return table_.num_free(); }
  /// Tokens that a sequence can hold, as far as pages are free.
  ATTN_ALWAYS_INLINE Index capacity() const { return capacity_; }
  /// The most keys that a sequence can ever hold at a time: the capacity.
  ATTN_ALWAYS_INLINE Index held_capacity() const { return capacity(); }
  /// The pages of sequence b, in the order of its tokens. Valid until the cache changes.
  ATTN_ALWAYS_INLINE Span<const Index> pages(Index b) const {
    return {table_.data() + b * table_.stride(), pages_for(Base::length(b))};
  }

  /// The pool: [num_pages, Hk, page_length, Dk] and [num_pages, Hv, page_length, Dv]. Token t of
  /// sequence b lies in row t % page_length of page pages(b)[t / page_length].
  ATTN_ALWAYS_INLINE Tensor4<const T> keys() const { return keys_.view(); }
  ATTN_ALWAYS_INLINE Tensor4<const T> values() const { return value_storage(); }

  /// Sequence `to` forgets its tokens and becomes the first `length` tokens of sequence `from`,
  /// without a copy: both use the same pages until one of them appends to a page that is not full.
  /// Throws ShapeError, and nothing changes, unless `from` holds as many and is another sequence.
  ATTN_ALWAYS_INLINE void share_prefix(Index from, Index to, Index length) {
    constexpr const char* kFunction = "PagedKeyValueCache::share_prefix";
    detail::check_sequence(kFunction, from, Base::batch());
    detail::check_sequence(kFunction, to, Base::batch());
    if (from == to || length < 0 || length > Base::length(from)) {
      detail::raise_shape_error(std::string(kFunction) + ": sequence " + std::to_string(to) +
                                " cannot become the first " + std::to_string(length) + " of the " +
                                std::to_string(Base::length(from)) + " tokens of sequence " +
                                std::to_string(from) +
                                ": that must be another sequence, and long enough");
    }
    share(from, to, length);
  }

  /// What the kernel reads.
  ATTN_ALWAYS_INLINE detail::KeyValueSource source() const {
    return Base::source_from(0, held_capacity());
  }

 private:
  static constexpr detail::CacheFunctions kFunctions{
      "PagedKeyValueCache::append",   "PagedKeyValueCache::append_to",
      "PagedKeyValueCache::truncate", "PagedKeyValueCache::reset",
      "PagedKeyValueCache::reorder",  "PagedKeyValueCache::save",
      "PagedKeyValueCache::restore",  "PagedKeyValueCache::keep_tokens"};

  ATTN_ALWAYS_INLINE PagedKeyValueCache(const CacheShape& shape,
                                        const detail::CacheStorage& storage)
      : Base(shape.batch, storage.value_columns),
        keys_(storage.keys),
        values_(storage.values),
        capacity_(capacity_of(shape)),
        table_(shape.num_pages, shape.batch, table_length(shape)) {}

  ATTN_ALWAYS_INLINE static CacheShape named(Index num_pages, Index page_length, Index batch,
                                             Index num_kv_heads, Index head_dim, Index value_dim) {
    CacheShape shape;
    shape.num_pages = num_pages;
    shape.page_length = page_length;
    shape.batch = batch;
    shape.num_kv_heads = num_kv_heads;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    return shape;
  }
  ATTN_ALWAYS_INLINE static detail::CacheStorage storage_of(const CacheShape& shape) {
    if (shape.page_length < 1 || detail::has_window(shape)) {
      detail::raise_cache_shape("PagedKeyValueCache",
                                "takes a page_length of 1 or more, and no window", shape);
    }
    const detail::CheckedSize table = detail::CheckedSize(table_length(shape));
    return detail::cache_storage("PagedKeyValueCache", shape, shape.num_pages, shape.page_length,
                                 table * Index{sizeof(Index)} + Base::kSequenceBytes, sizeof(T));
  }
  /// What all pages hold, or less if the shape says so.
  ATTN_ALWAYS_INLINE static Index capacity_of(const CacheShape& shape) {
    const detail::CheckedSize pool = detail::CheckedSize(shape.num_pages) * shape.page_length;
    return (std::min)(pool.value(), shape.capacity.value_or(pool.value()));
  }
  /// The most pages of a sequence.
  ATTN_ALWAYS_INLINE static Index table_length(const CacheShape& shape) {
    return pages_of(capacity_of(shape), shape.page_length);
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
    map.order = detail::KeyMap::Order::pages;
    map.pages = table_.data();
    map.page_table_stride = Base::batch() == 1 ? 0 : table_.stride();
    return map;
  }

  ATTN_ALWAYS_INLINE static Index pages_of(Index tokens, Index page_length) {
    return tokens == 0 ? 0 : (tokens - 1) / page_length + 1;
  }
  ATTN_ALWAYS_INLINE Index pages_for(Index tokens) const { return pages_of(tokens, page_length()); }
  /// Whether sequence first + i must copy its last page before it appends: the page is not full,
  /// and others use it who will not have made copies of their own before.
  ATTN_ALWAYS_INLINE bool copies_last_page(Index first, Index i, const PerBatch& counts) const {
    const Index b = first + i;
    if (counts[i] == 0 || Base::length(b) % page_length() == 0) return false;
    const Index last = last_page(b);
    Index others = table_.users(b, Base::length(b) / page_length()) - 1;
    for (Index before = 0; before < i && others > 0; ++before) {
      const Index other = first + before;
      if (counts[before] > 0 && Base::length(other) % page_length() != 0 &&
          last_page(other) == last) {
        --others;
      }
    }
    return others > 0;
  }
  ATTN_ALWAYS_INLINE Index last_page(Index b) const {
    return table_.page(b, Base::length(b) / page_length());
  }

  ATTN_ALWAYS_INLINE Index longest_sequence() const { return capacity(); }
  ATTN_ALWAYS_INLINE void make_room(const detail::CallShapes& call, Index first, Index sequences,
                                    const PerBatch& counts) {
    Index needed = 0;
    for (Index i = 0; i < sequences; ++i) {
      const Index held = Base::length(first + i);
      detail::require_room(call, first + i, held, counts[i], capacity());
      needed += pages_for(held + counts[i]) - pages_for(held) +
                (copies_last_page(first, i, counts) ? 1 : 0);
    }
    if (needed > num_free_pages()) {
      call.raise_shape({"append past capacity: ", needed, " more pages are needed, and ",
                        num_free_pages(), " of ", num_pages(), " are free"});
    }
    for (Index i = 0; i < sequences; ++i) take_pages(first + i, counts[i]);
  }
  ATTN_ALWAYS_INLINE void check_room(const detail::CallShapes& call,
                                     Span<const Index> lengths) const {
    Index needed = 0;
    for (const Index length : lengths) needed += pages_for(length);
    if (needed > num_pages()) {
      call.raise_shape(std::to_string(needed) + " pages are needed, and the pool has " +
                       std::to_string(num_pages()));
    }
  }
  ATTN_ALWAYS_INLINE void resume(Index b, Index length, Index) { take_pages(b, length); }
  ATTN_ALWAYS_INLINE void take_pages(Index b, Index count) {
    const Index held = Base::length(b), used = held % page_length();
    if (count > 0 && used > 0) own_page(b, held / page_length(), used);
    for (Index i = pages_for(held); i < pages_for(held + count); ++i) table_.take(b, i);
  }
  /// Copies the first `rows` tokens of page i of sequence b to one of its own, if others use it.
  ATTN_ALWAYS_INLINE void own_page(Index b, Index i, Index rows) {
    if (table_.users(b, i) == 1) return;
    const Index shared = table_.page(b, i);
    table_.give_back(b, i);
    table_.take(b, i);
    copy_rows(keys_, shared, table_.page(b, i), rows);
    copy_rows(values_, shared, table_.page(b, i), rows);
  }
  ATTN_ALWAYS_INLINE void check_moves(Index b, Index first, Index length) const {
    Index needed = 0;
    for (Index i = first / page_length(); i < pages_for(length); ++i) {
      if (table_.users(b, i) > 1) ++needed;
    }
    if (needed > num_free_pages()) {
      detail::raise_keep_error(
          kFunctions.keep_tokens,
          {"tokens would be moved into pages that other sequences use too; to copy those ", needed,
           " pages are needed, and ", num_free_pages(), " of ", num_pages(), " are free"});
    }
  }
  ATTN_ALWAYS_INLINE void prepare_moves(Index b, Index first, Index length) {
    for (Index i = first / page_length(); i < pages_for(length); ++i) {
      own_page(b, i, page_length());
    }
  }
  ATTN_ALWAYS_INLINE static void copy_rows(Tensor4Buffer<T>& pool, Index from, Index to,
                                           Index count) {
    const Shape4& s = pool.shape();
    for (Index head = 0; head < s.heads; ++head) {
      if (count * s.dim > 0)
        std::copy_n(&pool(from, head, 0, 0), count * s.dim, &pool(to, head, 0, 0));
    }
  }
  /// Gives back the pages behind the first `length` tokens.
  ATTN_ALWAYS_INLINE void cut(Index b, Index length) {
    for (Index i = pages_for(length); i < pages_for(Base::length(b)); ++i) table_.give_back(b, i);
  }

  ATTN_ALWAYS_INLINE void share(Index from, Index to, Index length) {
    Base::set_length(to, 0);
    for (Index i = 0; i < pages_for(length); ++i) table_.share(from, to, i);
    Base::set_length(to, length);
  }
  ATTN_ALWAYS_INLINE void copy_sequence(Index from, Index to) {
    share(from, to, Base::length(from));
  }
  ATTN_ALWAYS_INLINE void rotate_sequences(Span<const Index> parents, Index first) {
    table_.rotate(parents, first, pages_for(Base::longest_length()));
    Base::rotate_lengths(parents, first);
  }

  Tensor4Buffer<T> keys_, values_;
  Index capacity_ = 0;
  detail::PageTable table_;
};

}  // namespace attn

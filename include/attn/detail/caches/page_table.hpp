// attn/detail/caches/page_table.hpp - level 10: which pages of a pool each sequence has, and how
// many sequences use each page.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/caches/reorder.hpp"

namespace attn {
namespace detail {

/// The pages of the sequences of a cache. Of full size from the start, so that nothing allocates
/// later.
class PageTable {
 public:
  ATTN_ALWAYS_INLINE PageTable() = default;
  ATTN_ALWAYS_INLINE PageTable(const PageTable&) = default;
  ATTN_ALWAYS_INLINE PageTable& operator=(const PageTable&) = default;
  ATTN_ALWAYS_INLINE ~PageTable() = default;
  ATTN_ALWAYS_INLINE PageTable(Index num_pages, Index batch, Index pages_of_sequence)
      : users_(static_cast<std::size_t>(num_pages)),
        num_free_(num_pages),
        table_(static_cast<std::size_t>(batch * pages_of_sequence)),
        stride_(pages_of_sequence) {
    free_.reserve(users_.size());
    for (Index page = num_pages; page-- > 0;) free_.push_back(page);
  }

  ATTN_ALWAYS_INLINE void swap(PageTable& other) noexcept {
    users_.swap(other.users_);
    free_.swap(other.free_);
    std::swap(num_free_, other.num_free_);
    table_.swap(other.table_);
    std::swap(stride_, other.stride_);
  }

  ATTN_ALWAYS_INLINE Index num_free() const { return num_free_; }
  /// The pages of sequence b begin at b * stride().
  ATTN_ALWAYS_INLINE const Index* data() const { return table_.data(); }
  ATTN_ALWAYS_INLINE Index stride() const { return stride_; }

  /// Page i of sequence b.
  ATTN_ALWAYS_INLINE Index page(Index b, Index i) const {
    return table_[static_cast<std::size_t>(b * stride_ + i)];
  }
  /// How many sequences use it.
  ATTN_ALWAYS_INLINE Index users(Index b, Index i) const {
    return users_[static_cast<std::size_t>(page(b, i))];
  }
  /// Gives sequence b a page of its own, there must be a free one, which it has not had before.
  ATTN_ALWAYS_INLINE void take(Index b, Index i) {
    const Index taken = free_[static_cast<std::size_t>(--num_free_)];
    ++users_[static_cast<std::size_t>(taken)];
    place(b, i) = taken;
  }
  /// Gives sequence `to` that of another one.
  ATTN_ALWAYS_INLINE void share(Index from, Index to, Index i) {
    place(to, i) = page(from, i);
    ++users_[static_cast<std::size_t>(page(to, i))];
  }
  /// Takes it from sequence b.
  ATTN_ALWAYS_INLINE void give_back(Index b, Index i) {
    const Index given = page(b, i);
    if (--users_[static_cast<std::size_t>(given)] == 0) {
      free_[static_cast<std::size_t>(num_free_++)] = given;
    }
  }
  /// Rotates the first `count` pages of a ring of sequences (see move_in_place).
  ATTN_ALWAYS_INLINE void rotate(Span<const Index> parents, Index first, Index count) {
    rotate_numbers(table_.data(), stride_, count, parents, first);
  }

 private:
  ATTN_ALWAYS_INLINE Index& place(Index b, Index i) {
    return table_[static_cast<std::size_t>(b * stride_ + i)];
  }

  std::vector<Index> users_;  // [num_pages]: sequences that use each page
  std::vector<Index> free_;   // [num_pages]: pages that nobody uses, num_free_ of them
  Index num_free_ = 0;
  std::vector<Index> table_;  // [batch, stride_]: the pages of each sequence
  Index stride_ = 0;
};

}  // namespace detail
}  // namespace attn

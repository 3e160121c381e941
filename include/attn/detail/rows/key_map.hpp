// attn/detail/rows/key_map.hpp - level 4: where the row of a key lies.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <limits>

#include "attn/config.hpp"
#include "attn/detail/rows/tensor_ref.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// Which stored row holds key j: the index map through which the kernel reads caches.
struct KeyMap {
  enum class Order : unsigned char {
    as_stored,  ///< row j
    ring,       ///< row ring_row(tensor's length, j)
    pages,      ///< row j % page length (tensor's length) of page pages[j / page length]
  };
  Order order = Order::as_stored;
  const Index* pages = nullptr;  ///< the page table; batch b's starts at b * page_table_stride
  Index page_table_stride = 0;
  Index first_rows = 0;  ///< of a ring, that stay out of it: keys 0 .. first_rows - 1

  /// The row of a ring that holds key j.
  ATTN_ALWAYS_INLINE Index ring_row(Index rows, Index key) const {
    return key < first_rows ? key : first_rows + (key - first_rows) % (rows - first_rows);
  }
  /// The element offset of key j's row, and how many rows on from there follow at stride.length.
  struct Run {
    Index offset, length;
  };
  ATTN_ALWAYS_INLINE Run find(const TensorRef& tensor, Index batch, Index head, Index key) const {
    const Index rows = tensor.shape.length;
    if (order == Order::pages) {
      const Index row = key % rows, page = pages[batch * page_table_stride + key / rows];
      return {tensor.offset(page, head, row, 0), rows - row};
    }
    const Index b = tensor.shape.batch == 1 ? 0 : batch;
    if (order == Order::ring) {
      const Index row = ring_row(rows, key);
      return {tensor.offset(b, head, row, 0), (key < first_rows ? first_rows : rows) - row};
    }
    return {tensor.offset(b, head, key, 0), (std::numeric_limits<Index>::max)()};
  }
};

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

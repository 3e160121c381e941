// attn/detail/rows/tile_rows.hpp - level 4: the keys and values of a tile, where they lie or as a
// copy.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// How rows are fetched.
enum class Fetch : unsigned char {
  in_place,   ///< as they lie: whoever reads them knows their format and strides
  as_stored,  ///< contiguous elements, as few-row kernels read them
  converted,  ///< contiguous elements of A, in place or copied
  finite,     ///< a copy with 0 for what is infinite or NaN
};

/// The rows of some keys or values: as they are stored, or a copy of contiguous elements of A.
template <class A>
struct TileRows {
  KeyRange keys;
  Index end = 0;  ///< of the keys that will be read, some of them after these
  const FewRowKernels<A>* few_rows = nullptr;  ///< what reads contiguous rows
  const A* copy = nullptr;                     ///< of `keys`, copy_stride elements apart, or null
  Index copy_stride = 0;
  const TensorRef* tensor = nullptr;  ///< where they are stored
  const KeyMap* map = nullptr;
  Index batch = 0, head = 0;

  /// Calls f(run, key) for the runs of `part`, of which `key` is the first. While `queries` work on
  /// the rows of a run, rows a little further on are prefetched. One or two queries keep up with
  /// memory and are best served by what the CPU prefetches by itself: it is shown the first line of
  /// each row, so that it goes on at once where a page of memory ends. Pages of a cache may end
  /// before that pays.
  template <class F>
  void for_each_run(KeyRange part, Index queries, const F& f) const {
    // From memory 48 to 128 rows of 512 bytes did alike, 16 less well.
    constexpr Index kAhead = 64, kLine = 64;
    if (copy != nullptr) {
      f(RowRun{copy + (part.begin - keys.begin) * copy_stride,
               copy_stride * static_cast<Index>(sizeof(A)), part.size(), 0, 0},
        part.begin);
      return;
    }
    for (Index key = part.begin; key < part.end;) {
      const KeyMap::Run place = map->find(*tensor, batch, head, key);
      RowRun run{tensor->at(place.offset), tensor->stride.length * tensor->element_size(),
                 (std::min)(place.length, part.end - key), 0, 0};
      if (queries > 0 && key + kAhead < end) {
        const KeyMap::Run ahead = map->find(*tensor, batch, head, key + kAhead);
        run.ahead = reinterpret_cast<std::uintptr_t>(tensor->at(ahead.offset));
        run.ahead_bytes = queries > 2 || map->order == KeyMap::Order::pages
                              ? tensor->shape.dim * tensor->element_size()
                              : kLine;
        run.count = (std::min)(run.count, ahead.length);
      }
      f(run, key);
      key += run.count;
    }
  }

  /// Calls f(key, address) for each row of `part`.
  template <class F>
  void for_each_row(KeyRange part, const F& f) const {
    for_each_run(part, 0, [&](const RowRun& run, Index key) {
      for (Index j = 0; j < run.count; ++j) {
        f(key + j, static_cast<const void*>(static_cast<const char*>(run.first) + j * run.stride));
      }
    });
  }
  /// Fills rows[0 .. keys.size()) with the address of each row.
  void list(const void** rows) const {
    for_each_row(keys, [&](Index key, const void* row) { rows[key - keys.begin] = row; });
  }
};

/// The rows of `keys`, some of those up to `end`: in the tensor itself where `fetch` allows it,
/// else in `copy`, converted to A.
template <class A>
TileRows<A> fetch_rows(const TensorRef& tensor, const KeyMap& map, Index batch, Index head,
                       KeyRange keys, Index end, Fetch fetch, A* copy,
                       const KernelTable<A>& kernels) {
  TileRows<A> rows;
  rows.keys = keys;
  rows.end = end;
  rows.few_rows = kernels.few_rows;
  rows.tensor = &tensor;
  rows.map = &map;
  rows.batch = batch;
  rows.head = head;
  if (fetch == Fetch::in_place) return rows;
  if (fetch != Fetch::finite && tensor.template has_plain_rows<A>()) return rows;
  if constexpr (std::is_same_v<A, float>) {
    if (fetch == Fetch::as_stored && tensor.format->few_row_kernels != nullptr &&
        tensor.has_contiguous_rows()) {
      rows.few_rows = &tensor.format->few_row_kernels(kernels.set);
      return rows;
    }
  }
  const Index dim = tensor.shape.dim;
  for (Index key = keys.begin; key < keys.end;) {
    const KeyMap::Run run = map.find(tensor, batch, head, key);
    const Index count = (std::min)(run.length, keys.end - key);
    load_rows(tensor, run.offset, count, copy + (key - keys.begin) * dim, kernels.set);
    key += count;
  }
  if (fetch == Fetch::finite) {
    for (Index i = 0; i < keys.size() * dim; ++i) {
      if (!is_finite(copy[i])) copy[i] = 0;
    }
  }
  rows.copy = copy;
  rows.copy_stride = dim;
  return rows;
}

/// What a form of tile wants of its rows, and room for the copies of one key tile.
template <class A>
struct RowNeeds {
  Fetch keys, values;
  A *key_copy, *value_copy;
};

/// The keys and values of one key tile.
template <class A>
struct FetchedRows {
  KeyRange keys;
  Index tile_begin;  ///< key tiles begin at fixed places, whatever a mask leaves of them
  TileRows<A> key_rows, value_rows;
};

/// The keys and values of one batch and group, as a form of tile needs them.
template <class A>
class KeyValueRows {
 public:
  KeyValueRows(const KeyValueSource& source, Index batch, Index key_head, Index value_head,
               const RowNeeds<A>& needs, const KernelTable<A>& kernels)
      : source_(source),
        batch_(batch),
        key_head_(key_head),
        value_head_(value_head),
        needs_(needs),
        kernels_(kernels) {}

  /// The same rows with the values fetched in another way.
  KeyValueRows with_values(Fetch values) const {
    KeyValueRows result = *this;
    result.needs_.values = values;
    return result;
  }

  /// The rows of `keys`, which lie in the key tile that begins at tile_begin; up to `end` others
  /// follow. Copies stand at their places in the tile.
  FetchedRows<A> fetch(KeyRange keys, Index tile_begin, Index end) const {
    const Index place = keys.begin - tile_begin;
    return {keys, tile_begin,
            fetch_rows(source_.keys, source_.map, batch_, key_head_, keys, end, needs_.keys,
                       needs_.key_copy + place * source_.keys.shape.dim, kernels_),
            fetch_rows(source_.values, source_.map, batch_, value_head_, keys, end, needs_.values,
                       needs_.value_copy + place * source_.values.shape.dim, kernels_)};
  }

 private:
  const KeyValueSource& source_;
  Index batch_, key_head_, value_head_;
  RowNeeds<A> needs_;
  const KernelTable<A>& kernels_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

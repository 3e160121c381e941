// attn/detail/rows/rows.hpp - level 4: how rows enter and leave the tiles: conversion to and from
// the accumulation type, transposition, and where the row of a key lies.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// `value` as a T, rounded once (to nearest, ties to even).
template <class T, class A>
T round_to(A value) {
  if constexpr (std::is_same_v<T, A> || std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<A, float>) {
    return T(value);
  } else {
    // double to 16 bits through float would round twice. Rounding the first step to odd keeps the
    // information that the value was not exact, so the second step rounds as if it were the only
    // one. Source: S. Boldo, G. Melquiond, "When double rounding is odd" (2005).
    float nearest = static_cast<float>(value);
    if (is_finite(nearest) && static_cast<double>(nearest) != value) {
      std::uint32_t bits = bits_of(nearest);
      const bool too_large = static_cast<double>(nearest) > value;
      const bool negative = value < 0;
      if (too_large != negative) --bits;  // towards zero
      nearest = from_bits<float>(bits | 1u);
    }
    return T(nearest);
  }
}

/// Any element as a T, rounded once.
template <class T, class From>
T convert_element(From value) {
  if constexpr (std::is_same_v<T, From>) {
    return value;
  } else if constexpr (sizeof(From) == 2) {
    return round_to<T>(static_cast<float>(value));
  } else {
    return round_to<T>(value);
  }
}

/// out[i] = in[i * stride], in the accumulation type.
template <class A, class T>
void load_elements(const T* in, Index stride, Index count, A* out, const WidenTable& widen) {
  if constexpr (std::is_same_v<A, float> && sizeof(T) == 2) {
    if (stride == 1) {
      if constexpr (std::is_same_v<T, Eigen::half>) {
        widen.half(reinterpret_cast<const HalfBits*>(in), out, count);
      } else {
        widen.bfloat16(reinterpret_cast<const Bfloat16Bits*>(in), out, count);
      }
      return;
    }
  }
  for (Index i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 2) {
      out[i] = static_cast<A>(static_cast<float>(in[i * stride]));
    } else {
      out[i] = static_cast<A>(in[i * stride]);
    }
  }
}

/// `count` rows of `tensor` from an element offset on, tensor.stride.length apart, in the
/// accumulation type and contiguous.
template <class A>
void load_rows(const TensorRef& tensor, Index offset, Index count, A* out,
               const WidenTable& widen) {
  const Index dim = tensor.shape.dim;
  visit_element(tensor.type, [&](auto* type) {
    const auto* const first = static_cast<decltype(type)>(tensor.data) + offset;
    if (tensor.stride.dim == 1 && tensor.stride.length == dim) {
      load_elements(first, 1, count * dim, out, widen);
      return;
    }
    for (Index row = 0; row < count; ++row) {
      load_elements(first + row * tensor.stride.length, tensor.stride.dim, dim, out + row * dim,
                    widen);
    }
  });
}

/// One row of `tensor` at an element offset, in the accumulation type and contiguous.
template <class A>
void load_row(const TensorRef& tensor, Index offset, A* out, const WidenTable& widen) {
  load_rows(tensor, offset, 1, out, widen);
}

inline bool has_contiguous_rows(const TensorRef& tensor) {
  return tensor.stride.dim == 1 || tensor.shape.dim == 1;
}
/// Whether rows of `tensor` can be read or written in place, as contiguous elements of A.
template <class A>
bool has_plain_rows(const TensorRef& tensor) {
  return tensor.type == element_type<A>() && has_contiguous_rows(tensor);
}

/// `count` rows from an element offset on, tensor.stride.length apart, as columns of a transposed
/// tile: out[d * out_stride + row].
template <class A>
void load_columns(const TensorRef& tensor, Index offset, Index count, A* out, Index out_stride,
                  const KernelTable<A>& kernels, const WidenTable& widen) {
  const Index dim = tensor.shape.dim, stride = tensor.stride.length;
  if (has_plain_rows<A>(tensor)) {
    kernels.transpose(static_cast<const A*>(tensor.data) + offset, stride, count, dim, out,
                      out_stride);
    return;
  }
  visit_element(tensor.type, [&](auto* type) {
    const auto* const first = static_cast<decltype(type)>(tensor.data) + offset;
    // Converted a few rows at a time, as contiguous elements.
    constexpr Index kRows = 16, kDims = 64;
    A block[kRows * kDims];
    for (Index row = 0; row < count; row += kRows) {
      const Index rows = (std::min)(kRows, count - row);
      for (Index d = 0; d < dim; d += kDims) {
        const Index dims = (std::min)(kDims, dim - d);
        for (Index i = 0; i < rows; ++i) {
          load_elements(first + (row + i) * stride + d * tensor.stride.dim, tensor.stride.dim, dims,
                        block + i * kDims, widen);
        }
        kernels.transpose(block, kDims, rows, dims, out + d * out_stride + row, out_stride);
      }
    }
  });
}

/// Writes in[d * in_stride] to one row of an output tensor, rounded once.
template <class A>
void store_row(const TensorRef& tensor, Index offset, const A* in, Index in_stride) {
  visit_element(tensor.type, [&](auto* type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    T* const first = static_cast<T*>(const_cast<void*>(tensor.data)) + offset;
    const Index stride = tensor.stride.dim, count = tensor.shape.dim;
    for (Index d = 0; d < count; ++d) first[d * stride] = round_to<T>(in[d * in_stride]);
  });
}

/// store_columns for contiguous bfloat16: a few rows at a time, in pairs of dims.
inline void store_bfloat16_columns(const TensorRef& tensor, Index offset, Index count,
                                   const float* in, Index in_stride,
                                   const KernelTable<float>& kernels, const WidenTable& widen) {
  constexpr Index kRows = 16, kPairs = 32;
  float pairs[kPairs * kRows], rows[kRows * kPairs];
  auto* const first = static_cast<Eigen::bfloat16*>(const_cast<void*>(tensor.data)) + offset;
  for (Index row = 0; row < count; row += kRows) {
    const Index block = (std::min)(kRows, count - row);
    for (Index d = 0; d < tensor.shape.dim; d += 2 * kPairs) {
      const Index dims = (std::min)(2 * kPairs, tensor.shape.dim - d);
      widen.pair_bfloat16(in + d * in_stride + row, dims, block, in_stride, pairs, kRows);
      kernels.transpose(pairs, kRows, ceil_div(dims, 2), block, rows, kPairs);
      for (Index i = 0; i < block; ++i) {
        std::memcpy(static_cast<void*>(first + (row + i) * tensor.stride.length + d),
                    rows + i * kPairs, static_cast<std::size_t>(dims) * sizeof(Eigen::bfloat16));
      }
    }
  }
}

/// Writes columns of a transposed tile to `count` rows of an output tensor.
template <class A>
void store_columns(const TensorRef& tensor, Index offset, Index count, const A* in, Index in_stride,
                   const KernelTable<A>& kernels, const WidenTable& widen) {
  if (has_plain_rows<A>(tensor)) {
    kernels.transpose(in, in_stride, tensor.shape.dim, count,
                      static_cast<A*>(const_cast<void*>(tensor.data)) + offset,
                      tensor.stride.length);
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (tensor.type == ElementType::bfloat16 && tensor.stride.dim == 1) {
      store_bfloat16_columns(tensor, offset, count, in, in_stride, kernels, widen);
      return;
    }
  }
  for (Index row = 0; row < count; ++row) {
    store_row(tensor, offset + row * tensor.stride.length, in + row, in_stride);
  }
}

/// Which stored row holds key j: the index map through which the kernel reads caches.
struct KeyMap {
  Index ring = 0;                ///< > 0: row j % ring of the sequence
  Index page_length = 0;         ///< > 0: row j % page_length of page pages[j / page_length]
  const Index* pages = nullptr;  ///< the page table; batch b's starts at b * page_table_stride
  Index page_table_stride = 0;

  /// The element offset of key j's row, and how many rows on from there follow at stride.length.
  struct Run {
    Index offset, length;
  };
  Run find(const TensorRef& tensor, Index batch, Index head, Index key) const {
    constexpr Index kAll = (std::numeric_limits<Index>::max)();
    if (page_length > 0) {
      const Index row = key % page_length;
      const Index page = pages[batch * page_table_stride + key / page_length];
      return {tensor.offset(page, head, row, 0), page_length - row};
    }
    const Index b = tensor.shape.batch == 1 ? 0 : batch;
    if (ring > 0) {
      const Index row = key % ring;
      return {tensor.offset(b, head, row, 0), ring - row};
    }
    return {tensor.offset(b, head, key, 0), kAll};
  }
};

/// What a stage needs of the rows that it fetches.
enum class Fetch : unsigned char {
  as_stored,  ///< contiguous elements, as few-row kernels read them
  converted,  ///< contiguous elements of A, in place or copied
  copied,     ///< a copy that the stage may change
};

/// The rows of some keys or values, contiguous elements each: as they are stored, or a copy.
template <class A>
struct TileRows {
  KeyRange keys;
  Index end = 0;  ///< of the keys that will be read, some of them after these
  const FewRowKernels<A>* few_rows = nullptr;  ///< what reads them
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
      RowRun run{tensor->at(place.offset), tensor->stride.length * tensor->element_size,
                 (std::min)(place.length, part.end - key), 0, 0};
      if (queries > 0 && key + kAhead < end) {
        const KeyMap::Run ahead = map->find(*tensor, batch, head, key + kAhead);
        run.ahead = reinterpret_cast<std::uintptr_t>(tensor->at(ahead.offset));
        run.ahead_bytes =
            queries > 2 || map->page_length > 0 ? tensor->shape.dim * tensor->element_size : kLine;
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
                       const KernelTable<A>& kernels, const WidenTable& widen) {
  TileRows<A> rows;
  rows.keys = keys;
  rows.end = end;
  rows.few_rows = kernels.few_rows;
  rows.tensor = &tensor;
  rows.map = &map;
  rows.batch = batch;
  rows.head = head;
  if (fetch != Fetch::copied && has_plain_rows<A>(tensor)) return rows;
  if constexpr (std::is_same_v<A, float>) {
    if (fetch == Fetch::as_stored && tensor.few_row_kernels != nullptr &&
        has_contiguous_rows(tensor)) {
      rows.few_rows = &tensor.few_row_kernels(kernels.set);
      return rows;
    }
  }
  const Index dim = tensor.shape.dim;
  for (Index key = keys.begin; key < keys.end;) {
    const KeyMap::Run run = map.find(tensor, batch, head, key);
    const Index count = (std::min)(run.length, keys.end - key);
    load_rows(tensor, run.offset, count, copy + (key - keys.begin) * dim, widen);
    key += count;
  }
  rows.copy = copy;
  rows.copy_stride = dim;
  return rows;
}

}  // namespace detail
}  // namespace attn

// attn/detail/rows/transfer.hpp - level 4: rows between a tensor and the tiles: converted to and
// from the accumulation type, transposed where one lane is a row.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Calls f(begin, end, lines, offset) for runs of a block's rows that lie equally far apart in
/// `tensor`: `lines` is the tensor with that distance for its stride.length, `offset` where row
/// `begin` lies. A run ends with its head, or goes on where the next head's queries follow at the
/// same distance, as they do in decode, with one query a head.
template <class F>
void for_each_row_run(const TensorRef& tensor, const RowBlock& rows, const F& f) {
  const Index heads = tensor.stride.heads;
  TensorRef lines = tensor;
  if (rows.query_length == 1) lines.stride.length = heads;
  if (heads == rows.query_length * lines.stride.length) {
    f(Index{0}, rows.count, lines, tensor.offset(rows.batch, rows.head(0), rows.query(0), 0));
    return;
  }
  rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    f(begin, end, lines, tensor.offset(rows.batch, head, query, 0));
  });
}

/// `count` rows of `tensor` from an element offset on, tensor.stride.length apart, in the
/// accumulation type and contiguous.
template <class A>
void load_rows(const TensorRef& tensor, Index offset, Index count, A* out, InstructionSet set) {
  const Index dim = tensor.shape.dim;
  if (tensor.has_contiguous_rows() && tensor.stride.length == dim) {
    tensor.format->load(tensor.data, offset, 1, count * dim, out, set);
    return;
  }
  for (Index row = 0; row < count; ++row) {
    tensor.format->load(tensor.data, offset + row * tensor.stride.length, tensor.stride.dim, dim,
                        out + row * dim, set);
  }
}

/// One row of `tensor` at an element offset, in the accumulation type and contiguous.
template <class A>
void load_row(const TensorRef& tensor, Index offset, A* out, InstructionSet set) {
  load_rows(tensor, offset, 1, out, set);
}

/// `count` rows from an element offset on, tensor.stride.length apart, as columns of a transposed
/// tile: out[d * out_stride + row].
template <class A>
void load_columns(const TensorRef& tensor, Index offset, Index count, A* out, Index out_stride,
                  const KernelTable<A>& kernels) {
  const Index dim = tensor.shape.dim, stride = tensor.stride.length;
  if (tensor.template has_plain_rows<A>()) {
    kernels.transpose(static_cast<const A*>(tensor.data) + offset, stride, count, dim, out,
                      out_stride);
    return;
  }
  // Converted a few rows at a time, as contiguous elements.
  constexpr Index kRows = 16, kDims = 64;
  A block[kRows * kDims];
  for (Index row = 0; row < count; row += kRows) {
    const Index rows = (std::min)(kRows, count - row);
    for (Index d = 0; d < dim; d += kDims) {
      const Index dims = (std::min)(kDims, dim - d);
      for (Index i = 0; i < rows; ++i) {
        tensor.format->load(tensor.data, offset + (row + i) * stride + d * tensor.stride.dim,
                            tensor.stride.dim, dims, block + i * kDims, kernels.set);
      }
      kernels.transpose(block, kDims, rows, dims, out + d * out_stride + row, out_stride);
    }
  }
}

/// Writes in[d * in_stride] to one row of an output tensor, rounded once.
template <class A>
void store_row(const TensorRef& tensor, Index offset, const A* in, Index in_stride) {
  tensor.format->store(tensor.written(), offset, tensor.stride.dim, tensor.shape.dim, in,
                       in_stride);
}

/// Writes columns of a transposed tile to `count` rows of an output tensor.
template <class A>
void store_columns(const TensorRef& tensor, Index offset, Index count, const A* in, Index in_stride,
                   const KernelTable<A>& kernels) {
  if (tensor.template has_plain_rows<A>()) {
    kernels.transpose(in, in_stride, tensor.shape.dim, count,
                      static_cast<A*>(tensor.written()) + offset, tensor.stride.length);
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (tensor.format->store_columns != nullptr && tensor.stride.dim == 1) {
      tensor.format->store_columns(tensor.written(), offset, tensor.stride.length, count,
                                   tensor.shape.dim, in, in_stride, kernels);
      return;
    }
  }
  for (Index row = 0; row < count; ++row) {
    store_row(tensor, offset + row * tensor.stride.length, in + row, in_stride);
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

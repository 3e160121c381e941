// attn/detail/rows/row_format.hpp - level 4: how the elements of a tensor are stored, apart from
// where they lie. Storage of a new kind is one more RowFormat.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/instruction_set.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// What the elements are, where somebody reads or writes them without conversion.
enum class NumberType : unsigned char { float64, float32, float16, bfloat16, boolean, other };

/// What the kernels need to know of an element type. Offsets and strides count elements.
struct RowFormat {
  NumberType type;
  Index element_size;  ///< bytes
  /// out[i] = element offset + i * stride, for i < count, in the accumulation type, by the kernels
  /// of `set` where there are any.
  void (*load_float)(const void* data, Index offset, Index stride, Index count, float* out,
                     InstructionSet set);
  void (*load_double)(const void* data, Index offset, Index stride, Index count, double* out,
                      InstructionSet set);
  /// Element offset + i * stride = in[i * in_stride], rounded once. Null: never written to.
  void (*store_float)(void* data, Index offset, Index stride, Index count, const float* in,
                      Index in_stride);
  void (*store_double)(void* data, Index offset, Index stride, Index count, const double* in,
                       Index in_stride);
  /// The few-row kernels that read such rows as they are stored; null: none.
  const FewRowKernels<float>& (*few_row_kernels)(InstructionSet set) = nullptr;
  /// Columns of a transposed tile, in[d * in_stride + row], as `count` rows of `dim` contiguous
  /// elements, row_stride apart; null: row by row.
  void (*store_columns)(void* data, Index offset, Index row_stride, Index count, Index dim,
                        const float* in, Index in_stride,
                        const KernelTable<float>& kernels) = nullptr;

  ATTN_ALWAYS_INLINE void load(const void* data, Index offset, Index stride, Index count,
                               float* out, InstructionSet set) const {
    load_float(data, offset, stride, count, out, set);
  }
  ATTN_ALWAYS_INLINE void load(const void* data, Index offset, Index stride, Index count,
                               double* out, InstructionSet set) const {
    load_double(data, offset, stride, count, out, set);
  }
  ATTN_ALWAYS_INLINE void store(void* data, Index offset, Index stride, Index count,
                                const float* in, Index in_stride) const {
    store_float(data, offset, stride, count, in, in_stride);
  }
  ATTN_ALWAYS_INLINE void store(void* data, Index offset, Index stride, Index count,
                                const double* in, Index in_stride) const {
    store_double(data, offset, stride, count, in, in_stride);
  }
};

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

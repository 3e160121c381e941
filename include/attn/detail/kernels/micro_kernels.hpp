// attn/detail/kernels/micro_kernels.hpp - level 3: which tables of kernels there are, by
// instruction set. A file that uses the compiled library finds them there, others compile them.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/kernels/cpu_matrix.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/instruction_set.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

template <class A>
const KernelTable<A>& kernels(InstructionSet set);

/// The kernels that read rows of HalfBits or Bfloat16Bits as they are stored. Only a program that
/// has such tensors compiles them: their RowFormat refers to them.
template <class Bits>
const FewRowKernels<float>& few_row_kernels(InstructionSet set);

template <class A>
const MaskKernels<A>& mask_kernels(InstructionSet set);

// Templates, as the others, so that they need a body in one place only, and none where nobody calls
// them.
template <class = void>
const WidenTable& widening(InstructionSet set);
/// Vectors that multiply pairs of bfloat16 (AVX512_BF16), or null where the CPU lacks them.
template <class = void>
const MatrixUnit* bf16_dots_unit();
/// The matrix unit that calls with this instruction set may use, or null.
template <class = void>
const MatrixUnit* find_matrix_unit(InstructionSet set);

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

#if ATTN_HAS_ENGINE
#include "attn/detail/kernels/copies.hpp"
#endif

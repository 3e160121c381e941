// tests/support/shared_kernels.hpp - the kernel tables are compiled once for all tests, in
// kernels.cpp: they take most of the time that a file of tests takes to compile with sanitizers.
// The build includes this header before everything else (see CMakeLists.txt).
#pragma once

#include "attn/config.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"

namespace attn {
namespace detail {

extern template const KernelTable<float>& kernels<float>(InstructionSet);
extern template const KernelTable<double>& kernels<double>(InstructionSet);
extern template const FewRowKernels<float>& few_row_kernels<HalfBits>(InstructionSet);
extern template const FewRowKernels<float>& few_row_kernels<Bfloat16Bits>(InstructionSet);

}  // namespace detail
}  // namespace attn

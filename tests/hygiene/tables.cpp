// The kernel tables of all instruction sets and nothing else, for checks of their instructions.
#include "attn/config.hpp"

#include "attn/detail/kernels/micro_kernels.hpp"

namespace attn {
namespace detail {

template const KernelTable<float>& kernels<float>(InstructionSet);
template const KernelTable<double>& kernels<double>(InstructionSet);
template const MaskKernels<float>& mask_kernels<float>(InstructionSet);
template const MaskKernels<double>& mask_kernels<double>(InstructionSet);
template const FewRowKernels<float>& few_row_kernels<HalfBits>(InstructionSet);
template const FewRowKernels<float>& few_row_kernels<Bfloat16Bits>(InstructionSet);
template const WidenTable& widening<>(InstructionSet);

}  // namespace detail
}  // namespace attn

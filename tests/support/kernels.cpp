#include "attn/config.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"

namespace attn {
namespace detail {

template const KernelTable<float>& kernels<float>(InstructionSet);
template const KernelTable<double>& kernels<double>(InstructionSet);
template const FewRowKernels<float>& few_row_kernels<HalfBits>(InstructionSet);
template const FewRowKernels<float>& few_row_kernels<Bfloat16Bits>(InstructionSet);

}  // namespace detail
}  // namespace attn

// The compiled library, target attn::compiled: the driver and the kernels of attn, from the same
// source that header-only programs compile.
#define ATTN_COMPILING

#include "attn/attn.hpp"

namespace attn {
namespace detail {

#define ATTN_INSTANTIATE(A)                                                                        \
  template ScratchBytes scratch_bytes<A>(const AttentionCall<A>&);                                 \
  template void run_attention<A>(const AttentionCall<A>&, Executor*, Index, const ScratchBytes&,   \
                                 void*);                                                           \
  template void walk_block<A>(const AttentionCall<A>&, const RowBlock&, const AnyStep<A>&, void*); \
  template void multiply_item<A>(const LinearCall<A>&, const A*, Index, void*);                    \
  template const KernelTable<A>& kernels<A>(InstructionSet);                                       \
  template const MaskKernels<A>& mask_kernels<A>(InstructionSet)
ATTN_INSTANTIATE(float);
ATTN_INSTANTIATE(double);

template const FewRowKernels<float>& few_row_kernels<HalfBits>(InstructionSet);
template const FewRowKernels<float>& few_row_kernels<Bfloat16Bits>(InstructionSet);
template const WidenTable& widening<>(InstructionSet);
template const MatrixProducts& matrix_products<>();
template const MatrixUnit* find_matrix_unit<>(InstructionSet);
template const MatrixUnit* bf16_dots_unit<>();

}  // namespace detail
}  // namespace attn

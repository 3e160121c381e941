#include "attn/detail/micro_kernels.hpp"

namespace attn {
namespace detail {

template const KernelTable<float>& kernels<float>(InstructionSet);
template const KernelTable<double>& kernels<double>(InstructionSet);

}  // namespace detail
}  // namespace attn

// attn/layers/linear_weights.hpp - level 6: the weights of a linear layer, and how it is computed.
#pragma once

#include "attn/config.hpp"
#include "attn/executor.hpp"
#include "attn/instruction_set.hpp"
#include "attn/layers/coefficients.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// The weights of y = x W^T + b, as PyTorch's Linear stores them. Views: they own nothing.
///
/// Memory of (in x out), to be used as x W, is the same view with its strides swapped:
/// Tensor4<const T>(data, {1, 1, out, in}, {0, 0, 1, out}). A part of a fused weight [3 * out, in]
/// is fused.slice_length(first, out) with the bias Span(bias + first, out).
template <class T>
struct LinearWeights {
  Tensor4<const T> weight;         ///< [1, 1, out, in], any strides
  Coefficients<T> bias = nullptr;  ///< `out` elements, or none; a bare pointer: unchecked
};

/// Who computes a linear layer, and how. No choice changes a bit, but for the instruction set.
/// Members have the names that they have in AttentionOptions; see ExecutorOptions.
struct LinearOptions {
  /// Who runs the work. Unset: the calling thread alone.
  Executor* executor = nullptr;
  /// Forces a lower instruction set than the CPU's best; OptionError if the CPU lacks it.
  InstructionSet instruction_set = InstructionSet::best;
  /// Scratch memory, which calls at the same time must not share; linear_workspace_bytes says how
  /// much. Unset: allocated once a call.
  Workspace workspace = {};
};

}  // namespace attn

// attn/layers/executor_options.hpp - level 2: who runs a function that has nothing else to choose.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/executor.hpp"

namespace attn {

/// The options of a function that needs neither scratch memory nor a choice of kernels, as norms
/// and rotary embeddings do. Converts from an Executor*, and from any options struct, of which it
/// takes the executor.
///
/// So each function takes what it can use, under the same names: this one `executor`; LinearOptions
/// an instruction set and a workspace too; AttentionOptions all that and the terms of attention.
/// And one struct of a program serves all its calls: linear(x, w, y, options) and
/// rms_norm(y, norm, y, options). Functions that may want more one day can get it without another
/// parameter.
struct ExecutorOptions {
  /// Who runs the work. Unset: the calling thread alone.
  Executor* executor = nullptr;

  ATTN_ALWAYS_INLINE constexpr ExecutorOptions(Executor* executor_ = nullptr)
      : executor(executor_) {}
  template <class Options, class = std::enable_if_t<std::is_convertible_v<
                               decltype(std::declval<const Options&>().executor), Executor*>>>
  ATTN_ALWAYS_INLINE constexpr ExecutorOptions(const Options& options)
      : executor(options.executor) {}
};

}  // namespace attn

// attn/detail/layers/settled_executor.hpp - level 15: the executor of a call of several stages.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/executor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The executor of a call that runs in several stages, asked once how many tasks it takes at a
/// time: scratch is sized by the answer, and a second one might differ.
class SettledExecutor final : public Executor {
 public:
  explicit SettledExecutor(Executor* executor)
      : executor_(executor), concurrency_(static_cast<int>(worker_count(executor))) {}

  /// What the stages use; null if there is no executor.
  Executor* get() { return executor_ == nullptr ? nullptr : this; }

  int concurrency() const override { return concurrency_; }
  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    executor_->parallel_for(count, task, context);
  }

 private:
  Executor* executor_;
  int concurrency_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

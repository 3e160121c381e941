// attn/detail/call/parallel.hpp - level 5: work items over an executor, each worker with a slot of
// scratch.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <atomic>

#include "attn/config.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// How many workers an executor offers; 1 without one.
inline Index worker_count(Executor* executor) {
  return executor == nullptr ? 1
                             : (std::max)(Index{1}, static_cast<Index>(executor->concurrency()));
}

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

/// Calls run(slot, item) once for each item in [0, count), item 0 first; slots lie in [0, workers),
/// and no two calls share one at the same time. The first exception is rethrown here. Without an
/// executor: a plain loop.
template <class Run>
void for_each_item(Executor* executor, Index workers, Index count, const Run& run) {
  workers = (std::min)(workers, count);
  if (executor == nullptr || workers <= 1) {
    for (Index item = 0; item < count; ++item) run(Index{0}, item);
    return;
  }
  struct Context {
    const Run& run;
    Index count;
    std::atomic<Index> next{0};
    FirstException exception;
  } context{run, count, {}, {}};
  executor->parallel_for(
      workers,
      [](void* pointer, Index slot) {
        Context& c = *static_cast<Context*>(pointer);
        c.exception.guard([&] {
          for (;;) {
            const Index item = c.next.fetch_add(1, std::memory_order_relaxed);
            if (item >= c.count || c.exception.raised()) return;
            c.run(slot, item);
          }
        });
      },
      &context);
  context.exception.rethrow();
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

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

/// Something done for an item in a slot, behind one pointer: whatever runs items is compiled once.
class ItemRun {
 public:
  /// `run` outlives this.
  template <class Run>
  explicit ItemRun(const Run& run)
      : run_(&run), call_([](const void* r, Index slot, Index item) {
          (*static_cast<const Run*>(r))(slot, item);
        }) {}

  void operator()(Index slot, Index item) const { call_(run_, slot, item); }

 private:
  const void* run_;
  void (*call_)(const void*, Index, Index);
};

inline void run_items(Executor* executor, Index workers, Index count, const ItemRun& run) {
  workers = (std::min)(workers, count);
  if (executor == nullptr || workers <= 1) {
    for (Index item = 0; item < count; ++item) run(Index{0}, item);
    return;
  }
  struct Context {
    const ItemRun& run;
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

/// Calls run(slot, item) once for each item in [0, count), item 0 first; slots lie in [0, workers),
/// and no two calls share one at the same time. The first exception is rethrown here. Without an
/// executor: a plain loop.
template <class Run>
void for_each_item(Executor* executor, Index workers, Index count, const Run& run) {
  run_items(executor, workers, count, ItemRun(run));
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

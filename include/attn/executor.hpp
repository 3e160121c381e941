// attn/executor.hpp - level 1: who runs the work.
#pragma once

#include "attn/config.hpp"

namespace attn {

/// Runs independent tasks. The library never starts a thread by itself: a call without an executor
/// runs on the calling thread. Write your own to use an existing pool.
class Executor {
 public:
  virtual ~Executor() = default;

  /// How many tasks can run at the same time, the caller included; at least 1.
  virtual int concurrency() const = 0;

  /// Calls task(context, i) once for each i in [0, count), in any order and from any thread, and
  /// returns when all calls have returned. Tasks never throw. Several threads may enter at once.
  virtual void parallel_for(Index count, void (*task)(void* context, Index index),
                            void* context) = 0;
};

}  // namespace attn

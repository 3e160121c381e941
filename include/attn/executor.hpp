// attn/executor.hpp - level 1: who runs the work.
#pragma once

#include "attn/config.hpp"

namespace attn {

/// Runs independent tasks. The library never starts a thread by itself: a call without an executor
/// runs on the calling thread. Write your own to use an existing pool; the library relies on what
/// is said here, and checks none of it.
class Executor {
 public:
  virtual ~Executor() = default;

  /// How many tasks can run at the same time, the caller included; at least 1. Constant while a
  /// call of the library runs, and from asking how large a workspace must be to the call that uses
  /// it: scratch memory is divided among so many.
  virtual int concurrency() const = 0;

  /// Calls task(context, i) exactly once for each i in [0, count), in any order and from any
  /// thread, and returns when all calls have returned. An executor that leaves one out leaves
  /// outputs unwritten, without an error. Tasks never throw, and do not wait for each other: they
  /// may run one after the other. Several threads may enter at once.
  ///
  /// A task computes in the floating-point mode of the thread that runs it.
  virtual void parallel_for(Index count, void (*task)(void* context, Index index),
                            void* context) = 0;
};

}  // namespace attn

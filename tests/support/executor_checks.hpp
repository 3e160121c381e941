// tests/support/executor_checks.hpp - what every executor must do.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "attn/executor.hpp"

namespace attn {
namespace test {

/// Runs f(index) through an executor.
template <class F>
void parallel_for(Executor& executor, Index count, const F& f) {
  executor.parallel_for(
      count, [](void* context, Index index) { (*static_cast<const F*>(context))(index); },
      const_cast<F*>(&f));
}

/// Each index is run once, and what tasks wrote is seen afterwards, without atomics.
inline void expect_each_index_once(Executor& executor) {
  for (const Index count : {Index{0}, Index{1}, Index{2}, Index{7}, Index{64}, Index{1001}}) {
    std::vector<int> runs(static_cast<std::size_t>(count));
    parallel_for(executor, count, [&](Index i) { ++runs[static_cast<std::size_t>(i)]; });
    for (std::size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(runs[i], 1) << "index " << i;
  }
}

/// Loops within loops, within loops, do not block each other.
inline void expect_nesting_works(Executor& executor) {
  std::atomic<int> runs{0};
  parallel_for(executor, 5, [&](Index) {
    parallel_for(executor, 6, [&](Index) {
      parallel_for(executor, 7, [&](Index) { runs.fetch_add(1, std::memory_order_relaxed); });
    });
  });
  EXPECT_EQ(runs.load(), 5 * 6 * 7);
}

/// Several threads may use one executor at the same time; each sees its own loop completed.
inline void expect_many_callers_work(Executor& executor) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&executor, &wrong, caller] {
      for (int call = 0; call < 100; ++call) {
        const Index count = 1 + (caller * 31 + call) % 17;
        std::vector<int> runs(static_cast<std::size_t>(count));
        parallel_for(executor, count, [&](Index i) { runs[static_cast<std::size_t>(i)] += 1; });
        for (const int r : runs) {
          if (r != 1) wrong.fetch_add(1);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace test
}  // namespace attn

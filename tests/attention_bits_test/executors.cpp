// Line 16 of the contract: bits do not depend on who runs a call, on its memory, or on other calls
// at the same time.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "attention_bits_test/bits_of.hpp"
#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"
#include "support/full_call.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::expect_same;
using test::FullCall;
using test::Inputs;
using test::Results;
using test::run;
using test::same_bits;
using test::Sizes;

/// Runs its tasks on the calling thread, last index first, and claims any concurrency.
class BackwardExecutor : public Executor {
 public:
  explicit BackwardExecutor(int concurrency) : concurrency_(concurrency) {}
  int concurrency() const override { return concurrency_; }
  void parallel_for(Index count, void (*task)(void*, Index), void* context) override {
    for (Index i = count; i-- > 0;) task(context, i);
  }

 private:
  int concurrency_;
};

/// Runs each task on a thread of its own, all at once.
class ThreadPerTaskExecutor : public Executor {
 public:
  int concurrency() const override { return 5; }
  void parallel_for(Index count, void (*task)(void*, Index), void* context) override {
    std::vector<std::thread> threads;
    for (Index i = 0; i < count; ++i) threads.emplace_back(task, context, i);
    for (std::thread& thread : threads) thread.join();
  }
};

TYPED_TEST(BitsOf, DoNotDependOnTheExecutor) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 81);
    const Results<TypeParam> expected = run(in, call.mask(), call.options);
    const auto check = [&](Executor& executor, const std::string& what) {
      AttentionOptions options = call.options;
      options.executor = &executor;
      expect_same(run(in, call.mask(), options), expected, what);
    };
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      for (int repeat = 0; repeat < (threads == 4 ? 5 : 1); ++repeat) {
        check(pool, "ThreadPool of " + std::to_string(threads));
      }
      BackwardExecutor backward(threads);
      check(backward, "BackwardExecutor of " + std::to_string(threads));
    }
    ThreadPerTaskExecutor thread_per_task;
    check(thread_per_task, "ThreadPerTaskExecutor");
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheWorkspace) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 82);
    const Results<TypeParam> expected = run(in, call.mask(), call.options);
    const std::size_t bytes =
        attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), call.mask(), call.options);
    for (const std::size_t shift : {0u, 1u, 3u, 16u, 63u}) {
      for (const int fill : {0x00, 0xFF, 0x7F}) {  // zeros, NaN, huge numbers
        std::vector<char> memory(bytes + shift + 1000, static_cast<char>(fill));
        AttentionOptions options = call.options;
        options.workspace = {memory.data() + shift, bytes + 500};
        expect_same(run(in, call.mask(), options), expected,
                    "workspace at " + std::to_string(shift));
        for (std::size_t i = bytes + shift + 500; i < memory.size(); ++i) {
          ASSERT_EQ(memory[i], static_cast<char>(fill)) << "written behind the workspace";
        }
        for (std::size_t i = 0; i < shift; ++i) ASSERT_EQ(memory[i], static_cast<char>(fill));
      }
    }
  }
}

// ---- What may run at the same time.

TEST(Concurrency, ManyCallersShareAPoolAndTheirInputs) {
  const Sizes sizes = bit_sizes()[1];
  const FullCall call(sizes);
  const Inputs<float> in(sizes, 93);
  const Results<float> expected = run(in, call.mask(), call.options);
  ThreadPool pool(3);
  AttentionOptions options = call.options;
  options.executor = &pool;
  std::vector<std::thread> callers;
  std::vector<int> wrong(4);
  for (std::size_t caller = 0; caller < wrong.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        const Results<float> results = run(in, call.mask(), options);
        wrong[caller] += !same_bits(results.out.view(), expected.out.view());
        wrong[caller] += !same_bits(results.weights.view(), expected.weights.view());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int w : wrong) EXPECT_EQ(w, 0);
}

TEST(Concurrency, ACallMayRunInsideATaskOfItsPool) {
  const Sizes sizes = bit_sizes()[0];
  const Inputs<float> in(sizes, 94);
  const Results<float> expected = run(in, no_mask());
  ThreadPool pool(3);
  AttentionOptions options;
  options.executor = &pool;
  std::vector<int> same(10);
  test::parallel_for(pool, 10, [&](Index i) {
    const Results<float> results = run(in, no_mask(), options);
    same[static_cast<std::size_t>(i)] = bool(same_bits(results.out.view(), expected.out.view()));
  });
  for (const int s : same) EXPECT_EQ(s, 1);
}

}  // namespace
}  // namespace attn

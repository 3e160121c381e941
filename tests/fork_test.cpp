// Processes that inherit a ThreadPool, and programs that end while one is there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

/// Whether a child process that runs `body` ends with exit code 0. The alarm ends one that hangs.
template <class F>
bool ends_well(const F& body) {
  std::fflush(nullptr);  // the child would write what is buffered once more
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, ChildDestroysAPool) {
  auto pool = std::make_unique<ThreadPool>(4);
  expect_each_index_once(*pool);
  EXPECT_TRUE(ends_well([&] { pool.reset(); }));
  expect_each_index_once(*pool);
}

TEST(Fork, ChildEndsWhileAStaticPoolIsThere) {
  static ThreadPool pool(4);
  expect_each_index_once(pool);
  EXPECT_TRUE(ends_well([] { std::exit(0); }));
  expect_each_index_once(pool);
}

TEST(Fork, ChildWorksOnItsOneThread) {
  TestTensor<float> q({2, 4, 5, 8}), expected({2, 4, 5, 8});
  q.fill_uniform(1);
  scaled_dot_product_attention(q.view(), q.view(), q.view(), expected.view());
  ThreadPool pool(4);
  AttentionOptions options;
  options.executor = &pool;
  EXPECT_TRUE(ends_well([&] {
    const std::thread::id caller = std::this_thread::get_id();
    bool is_right = pool.concurrency() == 4;
    std::vector<int> runs(100, 0);
    parallel_for(pool, 100, [&](Index i) {
      ++runs[static_cast<std::size_t>(i)];
      is_right &= std::this_thread::get_id() == caller;
    });
    for (const int count : runs) is_right &= count == 1;
    TestTensor<float> out(expected.shape());
    scaled_dot_product_attention(q.view(), q.view(), q.view(), out.view(), no_mask(), options);
    is_right &= static_cast<bool>(same_bits(out.view(), expected.view()));
    if (!is_right) _exit(1);
  }));
}

// Whatever the threads hold at that moment.
TEST(Fork, MayHappenDuringACall) {
  auto pool = std::make_unique<ThreadPool>(4);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) parallel_for(*pool, 64, [](Index) {});
  });
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(ends_well([&] {
      parallel_for(*pool, 8, [](Index) {});
      pool.reset();
    }));
  }
  stop = true;
  caller.join();
}

TEST(ThreadPool, LetsOneOfItsThreadsEndTheProgram) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer lets no forked child start threads";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the thread sanitizer lets no forked child start threads";
#endif
#endif
  EXPECT_TRUE(ends_well([] {
    static ThreadPool pool(2);
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(pool, 2, [&](Index) {
      if (std::this_thread::get_id() != caller) std::exit(0);
      for (;;) pause();  // until another thread ends the program
    });
    _exit(1);
  }));
}

}  // namespace
}  // namespace test
}  // namespace attn

#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/executor_checks.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

class ThreadPoolOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, ::testing::Range(1, 9));

TEST_P(ThreadPoolOf, RunsEachIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.concurrency(), GetParam());
  test::expect_each_index_once(pool);
}

TEST_P(ThreadPoolOf, Nests) {
  ThreadPool pool(GetParam());
  test::expect_nesting_works(pool);
}

TEST_P(ThreadPoolOf, ServesManyCallers) {
  ThreadPool pool(GetParam());
  test::expect_many_callers_work(pool);
}

// Every thread of the pool is there, the caller among them: as many tasks as threads all wait for
// each other.
TEST_P(ThreadPoolOf, RunsOnAllItsThreads) {
  const int threads = GetParam();
  ThreadPool pool(threads);
  std::mutex mutex;
  std::condition_variable all_there;
  std::set<std::thread::id> ids;
  bool timed_out = false;
  test::parallel_for(pool, threads, [&](Index) {
    std::unique_lock<std::mutex> lock(mutex);
    ids.insert(std::this_thread::get_id());
    all_there.notify_all();
    // The limit only turns a deadlock into a failure.
    if (!all_there.wait_for(lock, std::chrono::seconds(60),
                            [&] { return ids.size() == static_cast<std::size_t>(threads); })) {
      timed_out = true;
    }
  });
  EXPECT_FALSE(timed_out);
  EXPECT_EQ(ids.size(), static_cast<std::size_t>(threads));
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 1u);
}

// No wake-up is lost, whether the workers still spin or are asleep.
TEST_P(ThreadPoolOf, SurvivesThousandsOfShortLoops) {
  ThreadPool pool(GetParam());
  Index sum = 0;
  for (int call = 0; call < 2000; ++call) {
    Index values[3] = {};
    test::parallel_for(pool, 3, [&](Index i) { values[i] = i + 1; });
    sum += values[0] + values[1] + values[2];
    if (call % 400 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(sum, 2000 * 6);
}

TEST_P(ThreadPoolOf, StartsAndStops) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool idle(GetParam());
    ThreadPool used(GetParam());
    int runs[4] = {};
    test::parallel_for(used, 4, [&](Index index) { ++runs[index]; });
    EXPECT_EQ(runs[0] + runs[1] + runs[2] + runs[3], 4);
  }
}

TEST(ThreadPool, OfOneThreadRunsOnTheCallerInOrder) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<Index> order;
  test::parallel_for(pool, 5, [&](Index i) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(i);
  });
  EXPECT_EQ(order, (std::vector<Index>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, NeedsAThread) {
  EXPECT_EQ(test::message_of<OptionError>([] { ThreadPool pool(0); }),
            "ThreadPool: needs at least 1 thread (the caller), got 0");
  EXPECT_EQ(test::message_of<OptionError>([] { ThreadPool pool(-3); }),
            "ThreadPool: needs at least 1 thread (the caller), got -3");
}

TEST(ThreadPool, IsNotCopied) {
  static_assert(!std::is_copy_constructible_v<ThreadPool>);
  static_assert(!std::is_copy_assignable_v<ThreadPool>);
  static_assert(!std::is_convertible_v<int, ThreadPool>);
}

}  // namespace
}  // namespace attn

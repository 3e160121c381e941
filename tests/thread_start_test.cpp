// A pool whose threads cannot all be started: those that were are joined, and the error is thrown.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"

namespace {

using Start = void* (*)(void*);
using Create = int (*)(pthread_t*, const pthread_attr_t*, Start, void*);

std::atomic<int> threads_until_failure{0};  // > 0: that many from now cannot be started
std::atomic<int> started{0};

}  // namespace

// The sanitizers' own, where there is one: they have to see threads start.
extern "C" __attribute__((weak)) int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*,
                                                                  Start, void*);

// Stands before the system's, which std::thread calls.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, Start start,
                              void* argument) {
  if (threads_until_failure.fetch_sub(1) == 1) return EAGAIN;
  ++started;
  if (__interceptor_pthread_create != nullptr) {
    return __interceptor_pthread_create(thread, attributes, start, argument);
  }
  static const auto system = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return system(thread, attributes, start, argument);
}

namespace attn {
namespace test {
namespace {

TEST(ThreadPool, JoinsWhatItStartedIfAThreadCannotBe) {
  for (int failing = 1; failing <= 3; ++failing) {
    started = 0;
    threads_until_failure = failing;
    EXPECT_THROW(ThreadPool(4), std::system_error);
    EXPECT_EQ(started, failing - 1);
  }
  threads_until_failure = 0;
  ThreadPool pool(4);
  EXPECT_EQ(pool.concurrency(), 4);
  expect_each_index_once(pool);
}

}  // namespace
}  // namespace test
}  // namespace attn

// attn/thread_pool.hpp - level 2: a pool of standard threads. The only file that starts threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "attn/config.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"

namespace attn {
namespace detail {

/// A parallel_for under way; lives on its caller's stack and in the list of jobs.
struct PoolJob {
  void (*task)(void* context, Index index);
  void* context;
  Index count;
  std::atomic<Index> next{0};
  std::atomic<int> workers{0};  ///< pool threads inside; changed under the mutex only
  PoolJob* next_job = nullptr;
};

struct Pool {
  ATTN_ALWAYS_INLINE Pool() {}

  std::mutex mutex;
  std::condition_variable wake, done;
  PoolJob* jobs = nullptr;
  std::atomic<unsigned> generation{0};
  bool stopping = false;
  std::vector<std::thread> workers;
  long process = 0;  ///< that started them
};

inline namespace ATTN_BUILD {

/// A number of this process, which a forked child does not share. Systems without fork have one.
inline long process_number() {
#if __has_include(<unistd.h>)
  return static_cast<long>(::getpid());
#else
  return 0;
#endif
}

inline bool has_work(const PoolJob& job) {
  return job.next.load(std::memory_order_relaxed) < job.count;
}

inline void run_job(PoolJob& job) {
  for (;;) {
    const Index i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.count) return;
    job.task(job.context, i);
  }
}

template <class Condition>
void spin_while(const Condition& condition) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(20);
  while (condition()) {
    if (Clock::now() >= end) return;
    std::this_thread::yield();
  }
}

/// What a thread of the pool does.
inline void work_for(Pool& pool) {
  std::unique_lock<std::mutex> lock(pool.mutex);
  for (;;) {
    PoolJob* job = pool.jobs;
    while (job != nullptr && !has_work(*job)) job = job->next_job;
    if (job != nullptr) {
      job->workers.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      run_job(*job);
      lock.lock();
      // The caller frees the job once it sees 0, which it can do only under this mutex or after
      // this store: nothing of the job is touched afterwards.
      if (job->workers.fetch_sub(1, std::memory_order_release) == 1) pool.done.notify_all();
      continue;
    }
    if (pool.stopping) return;
    const unsigned seen = pool.generation.load(std::memory_order_relaxed);
    lock.unlock();
    spin_while([&] { return pool.generation.load(std::memory_order_acquire) == seen; });
    lock.lock();
    pool.wake.wait(lock, [&] { return pool.generation.load(std::memory_order_relaxed) != seen; });
  }
}

inline void start_pool(Pool& pool, int threads) {
  pool.process = process_number();
  pool.workers.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) pool.workers.emplace_back([&pool] { work_for(pool); });
}

/// Ends the threads and the pool. In a forked child there are no threads to end, and what one of
/// them held or waited for at the fork stays so for ever: the pool's memory is left alone. So it is
/// where one of its own threads ends the program: that thread cannot wait for itself.
inline void stop_pool(Pool* pool) {
  if (!pool->workers.empty() && pool->process != process_number()) return;
  {
    const std::lock_guard<std::mutex> lock(pool->mutex);
    pool->stopping = true;
    pool->generation.fetch_add(1, std::memory_order_release);
  }
  pool->wake.notify_all();
  bool is_own_thread = false;
  for (std::thread& worker : pool->workers) {
    if (worker.get_id() == std::this_thread::get_id()) {
      is_own_thread = true;
    } else {
      worker.join();
    }
  }
  if (!is_own_thread) delete pool;
}

inline void run_on_pool(Pool& pool, Index count, void (*task)(void* context, Index index),
                        void* context) {
  if (count <= 0) return;
  if (count == 1 || pool.workers.empty() || pool.process != process_number()) {
    for (Index i = 0; i < count; ++i) task(context, i);
    return;
  }
  PoolJob job{task, context, count};
  {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    job.next_job = pool.jobs;
    pool.jobs = &job;
    pool.generation.fetch_add(1, std::memory_order_release);
  }
  pool.wake.notify_all();
  run_job(job);
  // All indices are taken; no further worker may enter, then wait for those inside.
  {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    PoolJob** link = &pool.jobs;
    while (*link != &job) link = &(*link)->next_job;
    *link = job.next_job;
  }
  spin_while([&] { return job.workers.load(std::memory_order_acquire) != 0; });
  std::unique_lock<std::mutex> lock(pool.mutex);
  pool.done.wait(lock, [&] { return job.workers.load(std::memory_order_acquire) == 0; });
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// A pool of standard threads. The calling thread works too: ThreadPool(4) starts three. Waiting
/// spins for at most 20 microseconds, then blocks. The destructor joins; no call may be running.
///
/// A child process that inherits a pool (fork) has none of its threads: there the calling thread
/// does all the work, with the same results, and the destructor joins nobody and leaves a few
/// hundred bytes behind. A child that wants threads makes a pool of its own.
///
/// Its threads keep the floating-point mode of the thread that made the pool, as it was then; they
/// do not take over that of a caller. Where subnormal numbers count as 0 (FTZ and DAZ, which
/// -ffast-math switches on in the main thread and audio programs by themselves) for the one and not
/// for the other, results depend on who computed them, by what subnormals contribute. So switch the
/// mode first, and make the pool then.
class ThreadPool final : public Executor {
 public:
  /// Throws OptionError if threads < 1, std::system_error or std::bad_alloc if one cannot be
  /// started; those that were are joined then.
  ATTN_ALWAYS_INLINE explicit ThreadPool(int threads) : ThreadPool() {
    // What throws from here on runs the destructor.
    if (threads < 1) {
      detail::raise_option_error("ThreadPool: needs at least 1 thread (the caller), got " +
                                 std::to_string(threads));
    }
    detail::start_pool(*pool_, threads);
    threads_ = threads;
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() override { stop_(pool_); }

  int concurrency() const override { return threads_; }

  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    run_(*pool_, count, task, context);
  }

 private:
  ATTN_ALWAYS_INLINE ThreadPool()
      : run_(&detail::run_on_pool), stop_(&detail::stop_pool), pool_(new detail::Pool) {}

  // The linker keeps one body of each virtual function: these are the file's that made the pool.
  void (*run_)(detail::Pool&, Index, void (*task)(void*, Index), void*);
  void (*stop_)(detail::Pool*);
  int threads_ = 1;
  detail::Pool* pool_;
};

}  // namespace attn

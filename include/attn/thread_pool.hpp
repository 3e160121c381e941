// attn/thread_pool.hpp - level 2: a pool of standard threads. The only file that starts threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attn/config.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"

namespace attn {

/// A pool of standard threads. The calling thread works too: ThreadPool(4) starts three. Waiting
/// spins for at most 20 microseconds, then blocks. The destructor joins; no call may be running.
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
    start(threads);
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int concurrency() const override { return static_cast<int>(workers_.size()) + 1; }

  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    if (count <= 0) return;
    if (count == 1 || workers_.empty()) {
      for (Index i = 0; i < count; ++i) task(context, i);
      return;
    }
    Job job{task, context, count};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job.next_job = jobs_;
      jobs_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    run(job);
    // All indices are taken; no further worker may enter, then wait for those inside.
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Job** link = &jobs_;
      while (*link != &job) link = &(*link)->next_job;
      *link = job.next_job;
    }
    spin_while([&] { return job.workers.load(std::memory_order_acquire) != 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return job.workers.load(std::memory_order_acquire) == 0; });
  }

 private:
  ThreadPool() = default;

  // A parallel_for under way; lives on its caller's stack and in the list of jobs.
  struct Job {
    void (*task)(void* context, Index index);
    void* context;
    Index count;
    std::atomic<Index> next{0};
    std::atomic<int> workers{0};  // pool threads inside; changed under the mutex only
    Job* next_job = nullptr;

    Job(void (*t)(void*, Index), void* c, Index n) : task(t), context(c), count(n) {}
    bool has_work() const { return next.load(std::memory_order_relaxed) < count; }
  };

  static void run(Job& job) {
    for (;;) {
      const Index i = job.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= job.count) return;
      job.task(job.context, i);
    }
  }

  template <class Condition>
  static void spin_while(const Condition& condition) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + std::chrono::microseconds(20);
    while (condition()) {
      if (Clock::now() >= end) return;
      std::this_thread::yield();
    }
  }

  void start(int threads) {
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Job* job = jobs_;
      while (job != nullptr && !job->has_work()) job = job->next_job;
      if (job != nullptr) {
        job->workers.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        run(*job);
        lock.lock();
        // The caller frees the job once it sees 0, which it can do only under this mutex or after
        // this store: nothing of the job is touched afterwards.
        if (job->workers.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
        continue;
      }
      if (stopping_) return;
      const unsigned seen = generation_.load(std::memory_order_relaxed);
      lock.unlock();
      spin_while([&] { return generation_.load(std::memory_order_acquire) == seen; });
      lock.lock();
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* jobs_ = nullptr;
  std::atomic<unsigned> generation_{0};
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace attn

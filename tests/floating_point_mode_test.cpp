// In which floating-point mode the threads of a pool compute: that of the thread that made it.
#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace attn {
namespace test {
namespace {

/// What modes a thread computes in: the rounding, and whether subnormal numbers count as 0.
struct Mode {
  int rounding = 0;
  unsigned subnormals = 0;
};
bool operator==(const Mode& a, const Mode& b) {
  return a.rounding == b.rounding && a.subnormals == b.subnormals;
}

#if defined(__x86_64__) || defined(_M_X64)
constexpr unsigned kFlushBits = 0x8040;  // FTZ and DAZ
unsigned subnormal_bits() { return _mm_getcsr() & kFlushBits; }
void set_subnormal_bits(unsigned bits) { _mm_setcsr((_mm_getcsr() & ~kFlushBits) | bits); }
#else
constexpr unsigned kFlushBits = 0;
unsigned subnormal_bits() { return 0; }
void set_subnormal_bits(unsigned) {}
#endif

Mode current() { return {std::fegetround(), subnormal_bits()}; }
void set(const Mode& mode) {
  std::fesetround(mode.rounding);
  set_subnormal_bits(mode.subnormals);
}

/// The mode of every thread of a pool but the caller's.
std::vector<Mode> modes_of(ThreadPool& pool) {
  std::mutex mutex;
  std::condition_variable all_there;
  std::vector<Mode> modes;
  int count = 0;
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(pool, pool.concurrency(), [&](Index) {
    std::unique_lock<std::mutex> lock(mutex);
    if (std::this_thread::get_id() != caller) modes.push_back(current());
    ++count;
    all_there.notify_all();
    // The limit only turns a deadlock into a failure.
    all_there.wait_for(lock, std::chrono::seconds(60), [&] { return count == pool.concurrency(); });
  });
  return modes;
}

TEST(ThreadPool, ComputesInTheModeOfWhoMadeIt) {
  const Mode normal = current();
  const Mode other{FE_TOWARDZERO, kFlushBits};
  for (const bool made_in_other : {false, true}) {
    const Mode &makers = made_in_other ? other : normal, &callers = made_in_other ? normal : other;
    set(makers);
    ThreadPool pool(3);
    set(callers);
    const std::vector<Mode> modes = modes_of(pool);
    set(normal);
    ASSERT_EQ(modes.size(), 2u);
    for (const Mode& mode : modes) EXPECT_TRUE(mode == makers);
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

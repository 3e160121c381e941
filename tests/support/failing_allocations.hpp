// tests/support/failing_allocations.hpp - makes one allocation after the other fail. Include it in
// one file of a program only, and not beside allocations.hpp: it replaces the global operator new.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace attn {
namespace test {

struct FailingAllocations {
  std::atomic<std::ptrdiff_t> live{0};       ///< blocks that are not freed
  std::atomic<std::ptrdiff_t> until_one{0};  ///< > 0: that many from now fails; at most 0: none
};

inline FailingAllocations& failing_allocations() {
  static FailingAllocations all;
  return all;
}

inline void* allocate_or_fail(std::size_t bytes, std::size_t alignment) {
  FailingAllocations& all = failing_allocations();
  if (all.until_one.fetch_sub(1) == 1) throw std::bad_alloc();
  // aligned_alloc takes a multiple of the alignment.
  void* const data = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  ++all.live;
  return data;
}

// Not inlined: g++ would see free() meet a pointer of operator new, and warn.
[[gnu::noinline]] inline void free_allocated(void* data) noexcept {
  if (data != nullptr) --failing_allocations().live;
  std::free(data);
}

/// Calls f with its first allocation failing, then with its second, and so on, until none fails.
/// After each failure nothing has leaked, and `check` is called. Returns how many f makes.
template <class F, class Check>
int fail_each_allocation(const F& f, const Check& check) {
  FailingAllocations& all = failing_allocations();
  for (int n = 1;; ++n) {
    const std::ptrdiff_t live = all.live;
    try {
      all.until_one = n;
      f();
      all.until_one = 0;
      return n - 1;
    } catch (const std::bad_alloc&) {
      all.until_one = 0;
    }
    EXPECT_EQ(all.live, live) << "allocation " << n << " failed";
    SCOPED_TRACE("allocation " + std::to_string(n) + " failed");
    check();
  }
}

}  // namespace test
}  // namespace attn

void* operator new(std::size_t bytes) {
  return attn::test::allocate_or_fail(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return attn::test::allocate_or_fail(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { attn::test::free_allocated(data); }
void operator delete(void* data, std::size_t) noexcept { attn::test::free_allocated(data); }
void operator delete(void* data, std::align_val_t) noexcept { attn::test::free_allocated(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  attn::test::free_allocated(data);
}

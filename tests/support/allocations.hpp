// tests/support/allocations.hpp - counts what a program allocates. Include it in one file of a
// program only: it replaces the global operator new.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace attn {
namespace test {

/// Allocations since the last reset; freeing takes none off.
struct Allocations {
  std::atomic<std::size_t> count{0}, bytes{0};

  void reset() { count = bytes = 0; }
};

inline Allocations& allocations() {
  static Allocations all;
  return all;
}

inline void* counted_allocation(std::size_t bytes, std::size_t alignment) {
  ++allocations().count;
  allocations().bytes += bytes;
  // aligned_alloc takes a multiple of the alignment.
  void* const data = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

// Not inlined: g++ would see free() meet a pointer of operator new, and warn.
[[gnu::noinline]] inline void free_counted(void* data) noexcept { std::free(data); }

}  // namespace test
}  // namespace attn

void* operator new(std::size_t bytes) {
  return attn::test::counted_allocation(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return attn::test::counted_allocation(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { attn::test::free_counted(data); }
void operator delete(void* data, std::size_t) noexcept { attn::test::free_counted(data); }
void operator delete(void* data, std::align_val_t) noexcept { attn::test::free_counted(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  attn::test::free_counted(data);
}

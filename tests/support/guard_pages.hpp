// tests/support/guard_pages.hpp - memory whose first or last byte touches a page that cannot be
// read: a single byte too far is a crash.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "attn/config.hpp"

namespace attn {
namespace test {

enum class GuardAt { end, begin };

/// `count` elements of T, the last (or first) of which ends (begins) at a forbidden page.
template <class T>
class GuardedMemory {
 public:
  GuardedMemory(Index count, GuardAt guard) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    void* const memory =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    EXPECT_EQ(::mprotect(memory_, page, PROT_NONE), 0);
    EXPECT_EQ(::mprotect(memory_ + page + inner, page, PROT_NONE), 0);
    data_ = guard == GuardAt::end ? memory_ + page + inner - bytes : memory_ + page;
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { ::munmap(memory_, size_); }

  T* data() { return reinterpret_cast<T*>(data_); }

 private:
  char* memory_ = nullptr;
  char* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Three parts of `part` elements of T each, whole pages; the middle one becomes unreadable.
template <class T>
class UnreadableMiddle {
 public:
  explicit UnreadableMiddle(Index part) : bytes_(static_cast<std::size_t>(part) * sizeof(T)) {
    EXPECT_EQ(bytes_ % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 0u);
    void* const memory =
        ::mmap(nullptr, 3 * bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    EXPECT_EQ(::mprotect(memory_ + bytes_, bytes_, PROT_NONE), 0);
  }
  UnreadableMiddle(const UnreadableMiddle&) = delete;
  UnreadableMiddle& operator=(const UnreadableMiddle&) = delete;
  ~UnreadableMiddle() { ::munmap(memory_, 3 * bytes_); }

  T* data() { return reinterpret_cast<T*>(memory_); }

 private:
  char* memory_ = nullptr;
  std::size_t bytes_;
};

}  // namespace test
}  // namespace attn

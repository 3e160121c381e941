// attn/detail/call/arena.hpp - level 5: pieces of one block of memory.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>

#include "attn/config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Hands out pieces of a block of memory, each aligned to a cache line. Over a null block it only
/// counts, so that one piece of code both sizes and carves.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  Arena() = default;
  explicit Arena(void* data) : data_(static_cast<char*>(data)) {}

  template <class T>
  T* take(Index count) {
    T* const piece = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    used_ +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::size_t used() const { return used_; }
  /// Whether there is memory, and not only a count of it.
  bool is_real() const { return data_ != nullptr; }

 private:
  char* data_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

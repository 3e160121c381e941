// tests/support/special_memory.hpp - memory that ends at a forbidden page, and memory that is far
// larger than the machine. For systems with mmap.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <type_traits>

#include "attn/tensor.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// Address space without memory behind it: a page costs memory once it is touched. Zeros.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(data_, bytes_); }

  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

/// A contiguous tensor whose last element touches a page that must not be read or written; the
/// bytes before the first element are poison.
template <class T>
class GuardedTensor {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit GuardedTensor(Shape4 shape)
      : shape_(shape),
        page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        bytes_((static_cast<std::size_t>(shape.size()) * sizeof(T) + page_) / page_ * page_),
        memory_(bytes_ + page_) {
    char* const base = static_cast<char*>(memory_.data());
    if (mprotect(base + bytes_, page_, PROT_NONE) != 0) throw std::bad_alloc();
    T* const end = reinterpret_cast<T*>(base + bytes_);
    for (T* at = reinterpret_cast<T*>(base); at != end; ++at) ::new (at) T(poison<T>());
    data_ = end - shape.size();
  }

  Tensor4<T> view() { return Tensor4<T>(data_, shape_); }
  Tensor4<const T> view() const { return Tensor4<const T>(data_, shape_); }
  const Shape4& shape() const { return shape_; }

  /// Sets every entry to that of `other`.
  template <class U>
  GuardedTensor& copy(const Tensor4<U>& other) {
    for_each_index(shape_, [&](Index b, Index h, Index i, Index d) {
      view()(b, h, i, d) = other(b, h, i, d);
    });
    return *this;
  }

 private:
  Shape4 shape_;
  std::size_t page_, bytes_;
  SparseMemory memory_;
  T* data_;
};

}  // namespace test
}  // namespace attn

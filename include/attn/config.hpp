// attn/config.hpp - level 0: version, Index, Span, and the few macros the library needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 201703L
#error "attn needs C++17: compile with -std=c++17 (or /std:c++17) or later"
#endif

// Inlined in every build, -O0 too, so that no out-of-line copy exists. It marks the member
// functions that may raise an error: what they call differs with -fno-exceptions, and one symbol
// must not have two bodies (see ATTN_ERRORS).
#if defined(_MSC_VER) && !defined(__clang__)
#define ATTN_ALWAYS_INLINE __forceinline
#else
#define ATTN_ALWAYS_INLINE inline __attribute__((always_inline))
#endif

// Built for size, as is the code that leads there: the texts of errors take less to compile and
// less room.
#if defined(_MSC_VER) && !defined(__clang__)
#define ATTN_COLD
#else
#define ATTN_COLD __attribute__((cold))
#endif

// The inline namespace of every free function that may raise an error. A program may mix files
// compiled with and without -fno-exceptions; the linker must not merge their functions.
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define ATTN_HAS_EXCEPTIONS 1
#define ATTN_ERRORS errors_throw
#else
#define ATTN_HAS_EXCEPTIONS 0
#define ATTN_ERRORS errors_abort
#endif

namespace attn {

/// Every size, stride and offset: signed and 64 bits wide on 64-bit machines.
using Index = std::ptrdiff_t;

/// A pointer and a size over memory that somebody else owns: C arrays, std::array and std::vector.
/// Only lvalues convert, because the array must outlive every use of the span (a mask or an
/// options struct keeps it until its last call).
template <class T>
class Span {
  using Value = std::remove_const_t<T>;

 public:
  constexpr Span() = default;
  constexpr Span(T* data, Index size) : data_(data), size_(size) {}

  template <std::size_t N>
  constexpr Span(T (&array)[N]) : data_(array), size_(static_cast<Index>(N)) {}
  template <class U, std::size_t N>
  Span(U (&&array)[N]) = delete;  // a temporary: name the array first

  template <std::size_t N>
  constexpr Span(std::array<Value, N>& array) : data_(array.data()), size_(static_cast<Index>(N)) {}
  template <std::size_t N, class U = T, class = std::enable_if_t<std::is_const_v<U>>>
  constexpr Span(const std::array<Value, N>& array)
      : data_(array.data()), size_(static_cast<Index>(N)) {}
  template <std::size_t N>
  Span(const std::array<Value, N>&& array) = delete;  // a temporary: name the array first

  template <class Allocator>
  Span(std::vector<Value, Allocator>& vector)
      : data_(vector.data()), size_(static_cast<Index>(vector.size())) {}
  template <class Allocator, class U = T, class = std::enable_if_t<std::is_const_v<U>>>
  Span(const std::vector<Value, Allocator>& vector)
      : data_(vector.data()), size_(static_cast<Index>(vector.size())) {}
  template <class Allocator>
  Span(const std::vector<Value, Allocator>&& vector) = delete;  // a temporary: name the vector

  /// Span<T> converts to Span<const T>.
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  constexpr Span(Span<U> other) : data_(other.data()), size_(other.size()) {}

  constexpr T* data() const { return data_; }
  constexpr Index size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](Index i) const { return data_[i]; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  Index size_ = 0;
};

}  // namespace attn

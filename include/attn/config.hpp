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
// must not have two bodies (see ATTN_BUILD).
#if defined(_MSC_VER) && !defined(__clang__)
#define ATTN_ALWAYS_INLINE __forceinline
#else
#define ATTN_ALWAYS_INLINE inline __attribute__((always_inline))
#endif

// Built for size, as is the code that leads there: the texts of errors take less to compile and
// less room.
#if defined(_MSC_VER) && !defined(__clang__)
#define ATTN_COLD
#define ATTN_NEVER_INLINE __declspec(noinline)
#else
#define ATTN_COLD __attribute__((cold))
#define ATTN_NEVER_INLINE __attribute__((noinline))
#endif

// What the code of a file depends on besides its text: whether errors throw or abort, the
// instructions that its compiler may use, and what it may do to arithmetic. A program may mix files
// of many flags, and the linker keeps one body a symbol. So every function of the library is one of
// two: it lies in an inline namespace that is named for them, ATTN_BUILD, or it is
// ATTN_ALWAYS_INLINE, as the members of all public classes are, which have one name for all files.
// (Virtual functions, which must have bodies, call through a pointer at once; what compilers define
// by themselves moves members, and computes nothing.)
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define ATTN_HAS_EXCEPTIONS 1
#define ATTN_BUILD_ERRORS throws
#else
#define ATTN_HAS_EXCEPTIONS 0
#define ATTN_BUILD_ERRORS aborts
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#define ATTN_BUILD_MATH fast
#define ATTN_IS_FAST_MATH 1
#else
#define ATTN_BUILD_MATH strict
#define ATTN_IS_FAST_MATH 0
#endif
#if defined(__AVX512VBMI__) || defined(__AVX512VNNI__) || defined(__AVX512BF16__)
#define ATTN_BUILD_VECTORS avx512_and_more
#elif defined(__AVX512F__)
#define ATTN_BUILD_VECTORS avx512
#elif defined(__AVX2__)
#define ATTN_BUILD_VECTORS avx2
#elif defined(__AVX__)
#define ATTN_BUILD_VECTORS avx
#elif defined(__SSE4_1__) || defined(__POPCNT__)
#define ATTN_BUILD_VECTORS sse4
#elif defined(__SSE3__)
#define ATTN_BUILD_VECTORS sse3
#elif defined(__ARM_FEATURE_SVE)
#define ATTN_BUILD_VECTORS sve
#else
#define ATTN_BUILD_VECTORS baseline
#endif
#if defined(__BMI__) || defined(__BMI2__) || defined(__LZCNT__)
#define ATTN_BUILD_BITS _bmi
#else
#define ATTN_BUILD_BITS
#endif
// Where the CPU has them, compilers contract to multiply-adds, each by its own rules, and each does
// its own with what -ffast-math permits.
#if !ATTN_IS_FAST_MATH && !defined(__FMA__) && !defined(__aarch64__)
#define ATTN_BUILD_SUMS
#elif defined(__clang__)
#define ATTN_BUILD_SUMS _by_clang
#else
#define ATTN_BUILD_SUMS _by_gcc
#endif
// A debug build must not lend its slow functions to the others, least of all to the compiled
// library, whose functions are nobody else's.
#if defined(ATTN_COMPILING)
#define ATTN_BUILD_EFFORT _in_library
#elif defined(__OPTIMIZE__) || defined(_MSC_VER)
#define ATTN_BUILD_EFFORT
#else
#define ATTN_BUILD_EFFORT _unoptimised
#endif
#define ATTN_JOIN_NAMES(a, b, c, d, e, f) a##_##b##_##c##d##e##f
#define ATTN_JOIN(a, b, c, d, e, f) ATTN_JOIN_NAMES(a, b, c, d, e, f)
#define ATTN_BUILD                                                                   \
  ATTN_JOIN(ATTN_BUILD_ERRORS, ATTN_BUILD_MATH, ATTN_BUILD_VECTORS, ATTN_BUILD_BITS, \
            ATTN_BUILD_SUMS, ATTN_BUILD_EFFORT)

// The inline namespace of what the compiled library and the files that use it have in common. They
// define ATTN_COMPILED (the target attn::compiled does), and find in the library the driver and the
// kernels that other files compile for themselves; its own source defines ATTN_COMPILING too.
#if defined(ATTN_COMPILED)
#define ATTN_ENGINE compiled
#else
#define ATTN_ENGINE ATTN_BUILD
#endif
#if defined(ATTN_COMPILED) && !defined(ATTN_COMPILING)
#define ATTN_HAS_ENGINE 0
#else
#define ATTN_HAS_ENGINE 1
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
  ATTN_ALWAYS_INLINE constexpr Span() = default;
  ATTN_ALWAYS_INLINE constexpr Span(T* data, Index size) : data_(data), size_(size) {}

  template <std::size_t N>
  ATTN_ALWAYS_INLINE constexpr Span(T (&array)[N]) : data_(array), size_(static_cast<Index>(N)) {}
  template <class U, std::size_t N>
  Span(U (&&array)[N]) = delete;  // a temporary: name the array first

  template <std::size_t N>
  ATTN_ALWAYS_INLINE constexpr Span(std::array<Value, N>& array)
      : data_(array.data()), size_(static_cast<Index>(N)) {}
  template <std::size_t N, class U = T, class = std::enable_if_t<std::is_const_v<U>>>
  ATTN_ALWAYS_INLINE constexpr Span(const std::array<Value, N>& array)
      : data_(array.data()), size_(static_cast<Index>(N)) {}
  template <std::size_t N>
  Span(const std::array<Value, N>&& array) = delete;  // a temporary: name the array first

  template <class Allocator>
  ATTN_ALWAYS_INLINE Span(std::vector<Value, Allocator>& vector)
      : data_(vector.data()), size_(static_cast<Index>(vector.size())) {}
  template <class Allocator, class U = T, class = std::enable_if_t<std::is_const_v<U>>>
  ATTN_ALWAYS_INLINE Span(const std::vector<Value, Allocator>& vector)
      : data_(vector.data()), size_(static_cast<Index>(vector.size())) {}
  template <class Allocator>
  Span(const std::vector<Value, Allocator>&& vector) = delete;  // a temporary: name the vector

  /// Span<T> converts to Span<const T>.
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  ATTN_ALWAYS_INLINE constexpr Span(Span<U> other) : data_(other.data()), size_(other.size()) {}

  ATTN_ALWAYS_INLINE constexpr T* data() const { return data_; }
  ATTN_ALWAYS_INLINE constexpr Index size() const { return size_; }
  ATTN_ALWAYS_INLINE constexpr bool empty() const { return size_ == 0; }
  ATTN_ALWAYS_INLINE constexpr T& operator[](Index i) const { return data_[i]; }
  ATTN_ALWAYS_INLINE constexpr T* begin() const { return data_; }
  ATTN_ALWAYS_INLINE constexpr T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  Index size_ = 0;
};

}  // namespace attn

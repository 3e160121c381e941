// attn/layers/coefficients.hpp - level 1: the biases of a projection, the factors of a norm.
#pragma once

#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"

namespace attn {

/// Contiguous numbers, one a feature, that somebody else owns; none by default. They outlive every
/// use of the weights that hold them.
///
/// From an lvalue array, std::array, std::vector or Span: a call checks that they are as many as
/// the features, else ShapeError; an empty one is none. From a bare pointer: UNCHECKED, what lies
/// behind it must hold enough; null is none. A part of a larger array is checked as
/// Span(pointer, size).
template <class T>
class Coefficients {
  template <class S>
  static constexpr bool is_span_v = std::is_convertible_v<S, Span<const T>>;

 public:
  ATTN_ALWAYS_INLINE constexpr Coefficients() = default;
  ATTN_ALWAYS_INLINE constexpr Coefficients(std::nullptr_t) {}
  // A template, so that arrays do not decay to it.
  template <class P,
            std::enable_if_t<std::is_pointer_v<P> && std::is_convertible_v<P, const T*>, int> = 0>
  ATTN_ALWAYS_INLINE constexpr Coefficients(const P& data) : data_(data) {}
  template <class S, std::enable_if_t<is_span_v<S&&>, int> = 0>
  ATTN_ALWAYS_INLINE constexpr Coefficients(S&& numbers) {
    const Span<const T> span = numbers;
    size_ = span.size();
    data_ = size_ == 0 ? nullptr : span.data();
    is_counted_ = true;
  }
  template <class S, std::enable_if_t<!is_span_v<S&&> && is_span_v<S&>, int> = 0>
  Coefficients(S&&) = delete;  // a temporary: name the array first

  /// The first number, null if there are none. The object converts to the same.
  ATTN_ALWAYS_INLINE constexpr const T* data() const { return data_; }
  ATTN_ALWAYS_INLINE constexpr operator const T*() const { return data_; }
  /// Whether it is known how many there are (no bare pointer was given), and their number.
  ATTN_ALWAYS_INLINE constexpr bool is_counted() const { return is_counted_; }
  ATTN_ALWAYS_INLINE constexpr Index size() const { return size_; }

 private:
  const T* data_ = nullptr;
  Index size_ = 0;
  bool is_counted_ = false;
};

}  // namespace attn

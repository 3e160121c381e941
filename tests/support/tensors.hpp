// tests/support/tensors.hpp - tensors of any layout, with poison in every gap and after every end.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "attn/tensor.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// Calls f(b, h, i, d) for every entry of a shape.
template <class F>
void for_each_index(const Shape4& shape, const F& f) {
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < shape.heads; ++h) {
      for (Index i = 0; i < shape.length; ++i) {
        for (Index d = 0; d < shape.dim; ++d) f(b, h, i, d);
      }
    }
  }
}

/// The place of an entry in the order batch, heads, length, dim.
inline std::uint64_t linear_index(const Shape4& shape, Index b, Index h, Index i, Index d) {
  return static_cast<std::uint64_t>(((b * shape.heads + h) * shape.length + i) * shape.dim + d);
}

enum class Layout {
  contiguous,    // batch, heads, length, dim
  bshd,          // batch, length, heads, dim
  padded,        // gaps after each row, head and batch
  permuted,      // dim slowest, length fastest
  inner_stride,  // every second element
  negative,      // every stride negative
  mixed,         // length negative and padded, dim of stride 2, batch innermost of all
};
inline constexpr Layout kAllLayouts[] = {Layout::contiguous, Layout::bshd,         Layout::padded,
                                         Layout::permuted,   Layout::inner_stride, Layout::negative,
                                         Layout::mixed};

inline Stride4 strides_of(Layout layout, const Shape4& s) {
  switch (layout) {
    case Layout::bshd:
      return {s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1};
    case Layout::padded: {
      const Index row = s.dim + 3, head = s.length * row + 5;
      return {s.heads * head + 7, head, row, 1};
    }
    case Layout::permuted:
      return {s.length, s.batch * s.length, 1, s.heads * s.batch * s.length};
    case Layout::inner_stride:
      return {2 * s.heads * s.length * s.dim, 2 * s.length * s.dim, 2 * s.dim, 2};
    case Layout::negative:
      return {-s.heads * s.length * s.dim, -s.length * s.dim, -s.dim, -1};
    case Layout::mixed: {
      const Index dim = 2 * s.batch, row = dim * s.dim + 1;
      return {1, s.length * row + 3, -row, dim};
    }
    case Layout::contiguous:
      break;
  }
  return {s.heads * s.length * s.dim, s.length * s.dim, s.dim, 1};
}

/// What a tensor holds where no entry lies: NaN, or a pattern that no test writes.
template <class T>
T poison() {
  if constexpr (std::is_same_v<T, bool>) {
    return true;
  } else if constexpr (std::is_integral_v<T>) {
    return T(0x5A);
  } else {
    return quiet_nan<T>();
  }
}

/// A tensor over storage of its own, of any strides. All storage holds poison until it is filled;
/// some storage before the first and after the last entry is never part of the view.
template <class T>
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(const TestTensor& other)
      : shape_(other.shape_), stride_(other.stride_), first_(other.first_), size_(other.size_) {
    storage_ = std::make_unique<T[]>(static_cast<std::size_t>(size_));
    std::copy_n(other.storage_.get(), size_, storage_.get());
  }
  TestTensor(TestTensor&&) = default;
  TestTensor& operator=(TestTensor&&) = default;
  explicit TestTensor(Shape4 shape, Layout layout = Layout::contiguous)
      : TestTensor(shape, strides_of(layout, shape)) {}
  TestTensor(Shape4 shape, Stride4 stride) : shape_(shape), stride_(stride) {
    Index lowest = 0, highest = -1;
    if (shape.size() > 0) {
      highest = 0;
      const Index reach[] = {(shape.batch - 1) * stride.batch, (shape.heads - 1) * stride.heads,
                             (shape.length - 1) * stride.length, (shape.dim - 1) * stride.dim};
      for (const Index r : reach) (r < 0 ? lowest : highest) += r;
    }
    first_ = kMargin - lowest;
    size_ = 2 * kMargin + highest - lowest + 1;
    storage_ = std::make_unique<T[]>(static_cast<std::size_t>(size_));
    std::fill_n(storage_.get(), size_, poison<T>());
  }

  Tensor4<T> view() { return Tensor4<T>(storage_.get() + first_, shape_, stride_); }
  Tensor4<const T> view() const {
    return Tensor4<const T>(storage_.get() + first_, shape_, stride_);
  }
  const Shape4& shape() const { return shape_; }
  T& operator()(Index b, Index h, Index i, Index d) { return view()(b, h, i, d); }
  const T& operator()(Index b, Index h, Index i, Index d) const { return view()(b, h, i, d); }

  /// Sets every entry to f(b, h, i, d).
  template <class F>
  TestTensor& fill(const F& f) {
    for_each_index(shape_, [&](Index b, Index h, Index i, Index d) {
      (*this)(b, h, i, d) = static_cast<T>(f(b, h, i, d));
    });
    return *this;
  }
  /// Uniform in [-limit, limit), the same for every layout.
  TestTensor& fill_uniform(std::uint64_t seed, double limit = 1) {
    return fill([&](Index b, Index h, Index i, Index d) {
      return to<T>(limit * uniform(seed, linear_index(shape_, b, h, i, d)));
    });
  }
  TestTensor& fill_value(T value) {
    return fill([&](Index, Index, Index, Index) { return value; });
  }

  /// Whether everything but the entries of the view still holds poison.
  ::testing::AssertionResult gaps_are_untouched() const {
    std::vector<bool> is_entry(static_cast<std::size_t>(size_));
    for_each_index(shape_, [&](Index b, Index h, Index i, Index d) {
      const T* entry = &view()(b, h, i, d);
      is_entry[static_cast<std::size_t>(entry - storage_.get())] = true;
    });
    return untouched([&](std::size_t at) { return !is_entry[at]; });
  }
  /// Whether nothing was written at all since the tensor was made.
  ::testing::AssertionResult is_untouched() const {
    return untouched([](std::size_t) { return true; });
  }

 private:
  static constexpr Index kMargin = 67;  // more than a vector register of any element

  template <class Counts>
  ::testing::AssertionResult untouched(const Counts& counts) const {
    const T expected = poison<T>();
    for (Index at = 0; at < size_; ++at) {
      if (counts(static_cast<std::size_t>(at)) &&
          !same_bits(storage_[static_cast<std::size_t>(at)], expected)) {
        return ::testing::AssertionFailure()
               << "element " << at - first_ << " from the first entry was written";
      }
    }
    return ::testing::AssertionSuccess();
  }

  Shape4 shape_;
  Stride4 stride_;
  Index first_ = 0, size_ = 0;
  std::unique_ptr<T[]> storage_;
};

/// Whether two tensors of one shape hold the same bits.
template <class T, class U>
::testing::AssertionResult same_bits(Tensor4<T> a, Tensor4<U> b) {
  using Value = std::remove_const_t<T>;
  static_assert(std::is_same_v<Value, std::remove_const_t<U>>);
  if (a.shape() != b.shape()) return ::testing::AssertionFailure() << "the shapes differ";
  const Shape4& s = a.shape();
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  for_each_index(s, [&](Index bi, Index h, Index i, Index d) {
    const Value x = a(bi, h, i, d), y = b(bi, h, i, d);
    if (result && !same_bits<Value>(x, y)) {
      result = ::testing::AssertionFailure()
               << "entry (" << bi << ", " << h << ", " << i << ", " << d << ") of [" << s.batch
               << ", " << s.heads << ", " << s.length << ", " << s.dim << "]: " << widen(x)
               << " against " << widen(y);
    }
  });
  return result;
}

}  // namespace test
}  // namespace attn

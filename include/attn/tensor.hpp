// attn/tensor.hpp - level 2: views over the caller's memory.
//
// Every tensor is 4-D: (batch, heads, length, dim). A view is a pointer, a shape and strides in
// ELEMENTS; it never owns and never copies. Strides may be anything: padded, permuted, 0 (that axis
// is broadcast), negative, an inner stride other than 1.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <initializer_list>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/error.hpp"

namespace attn {

/// The extents of a tensor.
struct Shape4 {
  Index batch = 0, heads = 0, length = 0, dim = 0;

  /// The number of elements; the largest Index if there are more. Extents must not be negative.
  ATTN_ALWAYS_INLINE constexpr Index size() const {
    using detail::CheckedSize;
    if (batch == 0 || heads == 0 || length == 0 || dim == 0) return 0;
    return (CheckedSize(batch) * heads * length * dim).value();
  }
  friend ATTN_ALWAYS_INLINE constexpr bool operator==(const Shape4& a, const Shape4& b) {
    return a.batch == b.batch && a.heads == b.heads && a.length == b.length && a.dim == b.dim;
  }
  friend ATTN_ALWAYS_INLINE constexpr bool operator!=(const Shape4& a, const Shape4& b) {
    return !(a == b);
  }
};

/// The distance between neighbours along each axis, in elements.
struct Stride4 {
  Index batch = 0, heads = 0, length = 0, dim = 0;

  friend ATTN_ALWAYS_INLINE constexpr bool operator==(const Stride4& a, const Stride4& b) {
    return a.batch == b.batch && a.heads == b.heads && a.length == b.length && a.dim == b.dim;
  }
  friend ATTN_ALWAYS_INLINE constexpr bool operator!=(const Stride4& a, const Stride4& b) {
    return !(a == b);
  }
};

namespace detail {
inline namespace ATTN_BUILD {

/// "q [2, 8, 128, 64]", as every error text spells a tensor.
ATTN_COLD inline std::string describe(const char* name, const Shape4& shape) {
  return std::string(name) + " [" + std::to_string(shape.batch) + ", " +
         std::to_string(shape.heads) + ", " + std::to_string(shape.length) + ", " +
         std::to_string(shape.dim) + "]";
}

/// Whether a tensor of such elements can be: no extent is negative, and the bytes fit an Index. The
/// extents beside a 0 are held to that too, since strides and sizes of parts come from them.
constexpr bool is_possible(const Shape4& shape, Index element_size) {
  CheckedSize bytes = element_size;
  for (const Index extent : {shape.batch, shape.heads, shape.length, shape.dim}) {
    bytes = bytes * (extent == 0 ? Index{1} : extent);
  }
  return bytes.fits();
}

/// The strides of memory in the order batch, heads, length, dim. Of a shape that cannot be, which
/// calls refuse, they are other numbers.
constexpr Stride4 contiguous_strides(const Shape4& shape) {
  const Index head = multiply_unchecked(shape.length, shape.dim);
  return {multiply_unchecked(shape.heads, head), head, shape.dim, 1};
}

template <class T>
ATTN_NEVER_INLINE void copy_numbers(const T* from, Index count, T* to) {
  for (Index i = 0; i < count; ++i) to[i] = from[i];
}

/// Memory for `count` zeros; null for none. GCC would warn of it where it is inlined behind a
/// check.
template <class T>
ATTN_NEVER_INLINE T* new_zeros(Index count, std::align_val_t alignment) {
  const std::size_t size = static_cast<std::size_t>(count);
  if (size == 0) return nullptr;
  T* const data = static_cast<T*>(::operator new(size * sizeof(T), alignment));
  for (std::size_t i = 0; i < size; ++i) ::new (static_cast<void*>(data + i)) T(0);
  return data;
}

}  // namespace ATTN_BUILD

}  // namespace detail

/// A non-owning view of a (batch, heads, length, dim) tensor. T may be const. Trivially copyable.
/// A default-constructed view is null and means "not given".
template <class T>
class Tensor4 {
 public:
  using Element = T;
  using Value = std::remove_const_t<T>;
  /// One (batch, head) as an Eigen matrix of length x dim, over the same memory.
  using Matrix = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using MatrixMap = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>,
                               Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

  ATTN_ALWAYS_INLINE constexpr Tensor4() = default;
  /// Contiguous in the order batch, heads, length, dim.
  ATTN_ALWAYS_INLINE constexpr Tensor4(T* data, Shape4 shape)
      : Tensor4(data, shape, detail::contiguous_strides(shape)) {}
  ATTN_ALWAYS_INLINE constexpr Tensor4(T* data, Shape4 shape, Stride4 stride)
      : data_(data), shape_(shape), stride_(stride) {}
  /// Tensor4<T> converts to Tensor4<const T>.
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  ATTN_ALWAYS_INLINE constexpr Tensor4(const Tensor4<U>& other)
      : data_(other.data()), shape_(other.shape()), stride_(other.stride()) {}

  ATTN_ALWAYS_INLINE constexpr T* data() const { return data_; }
  ATTN_ALWAYS_INLINE constexpr const Shape4& shape() const { return shape_; }
  ATTN_ALWAYS_INLINE constexpr const Stride4& stride() const { return stride_; }
  ATTN_ALWAYS_INLINE constexpr Index batch() const { return shape_.batch; }
  ATTN_ALWAYS_INLINE constexpr Index heads() const { return shape_.heads; }
  ATTN_ALWAYS_INLINE constexpr Index length() const { return shape_.length; }
  ATTN_ALWAYS_INLINE constexpr Index dim() const { return shape_.dim; }

  /// The element at (b, h, i, d). Not checked.
  ATTN_ALWAYS_INLINE constexpr T& operator()(Index b, Index h, Index i, Index d) const {
    return data_[b * stride_.batch + h * stride_.heads + i * stride_.length + d * stride_.dim];
  }

  /// The (length x dim) matrix of one batch and head, without a copy.
  ATTN_ALWAYS_INLINE MatrixMap matrix(Index b, Index h) const {
    T* first = data_ == nullptr ? nullptr : data_ + b * stride_.batch + h * stride_.heads;
    return MatrixMap(first, shape_.length, shape_.dim,
                     Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(stride_.length, stride_.dim));
  }

  /// `count` entries of one axis, from `first` on. Throws ShapeError if they are out of range.
  ATTN_ALWAYS_INLINE Tensor4 slice_batch(Index first, Index count) const {
    return slice("slice_batch", &Shape4::batch, stride_.batch, first, count);
  }
  ATTN_ALWAYS_INLINE Tensor4 slice_heads(Index first, Index count) const {
    return slice("slice_heads", &Shape4::heads, stride_.heads, first, count);
  }
  ATTN_ALWAYS_INLINE Tensor4 slice_length(Index first, Index count) const {
    return slice("slice_length", &Shape4::length, stride_.length, first, count);
  }

 private:
  ATTN_ALWAYS_INLINE Tensor4 slice(const char* name, Index Shape4::*axis, Index stride, Index first,
                                   Index count) const {
    if (first < 0 || count < 0 || count > shape_.*axis || first > shape_.*axis - count) {
      detail::raise_shape_error(std::string("Tensor4::") + name + ": the range [" +
                                std::to_string(first) + ", " + std::to_string(first) + " + " +
                                std::to_string(count) + ") does not lie within " +
                                detail::describe("tensor", shape_));
    }
    Tensor4 result = *this;
    result.shape_.*axis = count;
    // An empty slice keeps the pointer: data + first * stride might lie outside the allocation.
    if (count > 0) result.data_ = data_ + first * stride;
    return result;
  }

  T* data_ = nullptr;
  Shape4 shape_;
  Stride4 stride_;
};

/// A view of memory in the order batch, heads, length, dim, its extents given in that order.
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> bhsd(T* data, Index batch, Index heads, Index length,
                                             Index dim) {
  return Tensor4<T>(data, Shape4{batch, heads, length, dim});
}
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> bhsd(T* data, Shape4 shape) {
  return Tensor4<T>(data, shape);
}

/// A view of memory in the order batch, length, heads, dim, what a projection writes: its extents
/// given in that order, bshd(data, batch, length, heads, dim), or as a Shape4, whose order is
/// always batch, heads, length, dim. Either way the view is [batch, heads, length, dim].
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> bshd(T* data, Shape4 shape) {
  const Index row = detail::multiply_unchecked(shape.heads, shape.dim);
  return Tensor4<T>(data, shape,
                    Stride4{detail::multiply_unchecked(shape.length, row), shape.dim, row, 1});
}
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> bshd(T* data, Index batch, Index length, Index heads,
                                             Index dim) {
  return bshd(data, Shape4{batch, heads, length, dim});
}

/// A view of rank-3 memory (batch, length, dim) as [batch, 1, length, dim].
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> bsd(T* data, Index batch, Index length, Index dim) {
  return Tensor4<T>(data, Shape4{batch, 1, length, dim});
}

/// A view of rank-3 memory (heads, length, dim) as [1, heads, length, dim].
template <class T>
ATTN_ALWAYS_INLINE constexpr Tensor4<T> hsd(T* data, Index heads, Index length, Index dim) {
  return Tensor4<T>(data, Shape4{1, heads, length, dim});
}

namespace detail {

inline namespace ATTN_BUILD {

/// What an Eigen expression is: its own kind, or void for what is none.
template <class Derived>
Derived eigen_expression(const Eigen::DenseBase<Derived>*);
void eigen_expression(const void*);
template <class T>
using EigenExpression = decltype(eigen_expression(static_cast<const T*>(nullptr)));

template <class T>
constexpr bool has_eigen_memory() {
  if constexpr (std::is_void_v<EigenExpression<T>>) {
    return false;
  } else {
    return (int(T::Flags) & Eigen::DirectAccessBit) != 0;
  }
}
/// Whether T is an Eigen Matrix, Array, Map, Ref or Block: an expression whose elements lie in
/// memory.
template <class T>
inline constexpr bool has_eigen_memory_v = has_eigen_memory<T>();
/// Whether it owns that memory.
template <class T>
inline constexpr bool is_plain_v = std::is_base_of_v<Eigen::PlainObjectBase<T>, T>;

[[noreturn]] ATTN_COLD inline void raise_view_error(const char* name, Index value, const char* axis,
                                                    Index rows, Index columns) {
  raise_shape_error(std::string("view: ") + name + " " + std::to_string(value) +
                    " does not divide the " + axis + " of the matrix (" + std::to_string(rows) +
                    " x " + std::to_string(columns) + ")");
}

/// The rows of `matrix` as batch * length tokens, its columns as num_heads * dim.
template <class Expression>
auto view_tokens(Expression& matrix, Index num_heads, Index batch) {
  const Index length = matrix.rows() / batch, dim = matrix.cols() / num_heads;
  const Index row = matrix.rowStride(), column = matrix.colStride();
  using T = std::remove_pointer_t<decltype(matrix.data())>;
  return Tensor4<T>(matrix.data(), Shape4{batch, num_heads, length, dim},
                    Stride4{row * length, column * dim, row, column});
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// A view of an Eigen Matrix, Array, Map, Ref or Block (any storage order) whose rows are tokens,
/// those of batch 0 first: (batch, num_heads, rows / batch, cols / num_heads). Constness is kept.
/// Nothing is copied, so a temporary Matrix does not compile. Throws ShapeError unless num_heads
/// divides the columns and batch the rows.
template <class Expression>
ATTN_ALWAYS_INLINE auto view(Expression&& matrix, Index num_heads, Index batch = 1) {
  using Plain = std::remove_cv_t<std::remove_reference_t<Expression>>;
  static_assert(!std::is_void_v<detail::EigenExpression<Plain>>,
                "attn::view takes an Eigen Matrix, Array, Map, Ref or Block");
  static_assert(std::is_void_v<detail::EigenExpression<Plain>> || detail::has_eigen_memory_v<Plain>,
                "attn::view takes an Eigen expression with direct access to memory (Matrix, Array, "
                "Map, Ref or Block); evaluate other expressions into a Matrix first");
  static_assert(!detail::is_plain_v<Plain> || std::is_lvalue_reference_v<Expression>,
                "attn::view of a temporary Matrix would dangle: give the matrix a name first");
  if constexpr (detail::has_eigen_memory_v<Plain>) {
    const Index rows = matrix.rows(), columns = matrix.cols();
    if (num_heads < 1 || columns % num_heads != 0) {
      detail::raise_view_error("num_heads", num_heads, "columns", rows, columns);
    }
    if (batch < 1 || rows % batch != 0) {
      detail::raise_view_error("batch", batch, "rows", rows, columns);
    }
    return detail::view_tokens(matrix, num_heads, batch);
  } else {
    // The sentences above stay alone.
    using T = typename std::conditional_t<std::is_void_v<detail::EigenExpression<Plain>>,
                                          Eigen::MatrixXf, Plain>::Scalar;
    return Tensor4<const T>();
  }
}

/// The same as one head: (1, 1, rows, cols).
template <class Expression>
ATTN_ALWAYS_INLINE auto view(Expression&& matrix) {
  return attn::view(std::forward<Expression>(matrix), 1);
}

/// An owning, zero-initialised tensor, contiguous in the order batch, heads, length, dim and
/// aligned to 64 bytes whatever the compiler flags (so it may be made in one translation unit and
/// freed in another). Throws ShapeError for a negative extent, or extents (those that are 0 apart)
/// whose product in bytes overflows an Index. Where an assignment throws std::bad_alloc, nothing
/// has changed.
template <class T>
class Tensor4Buffer {
  static_assert(std::is_trivially_destructible_v<T> && !std::is_const_v<T>,
                "attn::Tensor4Buffer holds plain numbers: T is not const");

 public:
  using Element = T;

  ATTN_ALWAYS_INLINE Tensor4Buffer() = default;
  ATTN_ALWAYS_INLINE explicit Tensor4Buffer(Shape4 shape) : shape_(shape) {
    if (!detail::is_possible(shape, sizeof(T))) {
      detail::raise_shape_error("Tensor4Buffer: negative or too large: " +
                                detail::describe("shape", shape));
    }
    allocate();
  }
  ATTN_ALWAYS_INLINE Tensor4Buffer(const Tensor4Buffer& other) : shape_(other.shape_) {
    allocate();
    detail::copy_numbers(other.data_, shape_.size(), data_);
  }
  ATTN_ALWAYS_INLINE Tensor4Buffer(Tensor4Buffer&& other) noexcept { swap(other); }
  ATTN_ALWAYS_INLINE Tensor4Buffer& operator=(const Tensor4Buffer& other) {
    return *this = Tensor4Buffer(other);
  }
  ATTN_ALWAYS_INLINE Tensor4Buffer& operator=(Tensor4Buffer&& other) noexcept {
    Tensor4Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ATTN_ALWAYS_INLINE ~Tensor4Buffer() { ::operator delete(data_, kAlignment); }

  ATTN_ALWAYS_INLINE void swap(Tensor4Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(shape_, other.shape_);
  }

  ATTN_ALWAYS_INLINE Tensor4<T> view() { return Tensor4<T>(data_, shape_); }
  ATTN_ALWAYS_INLINE Tensor4<const T> view() const { return Tensor4<const T>(data_, shape_); }

  ATTN_ALWAYS_INLINE T* data() { return data_; }
  ATTN_ALWAYS_INLINE const T* data() const { return data_; }
  ATTN_ALWAYS_INLINE const Shape4& shape() const { return shape_; }
  ATTN_ALWAYS_INLINE Index size() const { return shape_.size(); }
  ATTN_ALWAYS_INLINE bool empty() const { return shape_.size() == 0; }

  ATTN_ALWAYS_INLINE T& operator()(Index b, Index h, Index i, Index d) {
    return view()(b, h, i, d);
  }
  ATTN_ALWAYS_INLINE const T& operator()(Index b, Index h, Index i, Index d) const {
    return view()(b, h, i, d);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};  // a cache line, the widest vector register

  ATTN_ALWAYS_INLINE void allocate() { data_ = detail::new_zeros<T>(shape_.size(), kAlignment); }

  T* data_ = nullptr;
  Shape4 shape_;
};

}  // namespace attn

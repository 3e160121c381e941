// attn/layers/token_positions.hpp - level 3: where the tokens of a call stand.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// The positions of tokens, one by one: a view [B|1, 1, S, 1] of std::int32_t or std::int64_t, of
/// any strides, which outlives the call; B: the tokens' batch, or 1 for all. For a rotary embedding
/// of n sections also [B|1, 1, S, n]: a position for each section (time, row and column of a part
/// of an image). Positions may come in any order, repeat and be negative. Default: not given.
class TokenPositions {
 public:
  ATTN_ALWAYS_INLINE constexpr TokenPositions() = default;
  template <class Number>
  ATTN_ALWAYS_INLINE constexpr TokenPositions(const Tensor4<Number>& view)
      : data_(view.data()),
        shape_(view.shape()),
        stride_(view.stride()),
        is_wide_(sizeof(Number) == 8),
        is_given_(true) {
    static_assert(std::is_integral_v<Number> && std::is_signed_v<Number> &&
                      (sizeof(Number) == 4 || sizeof(Number) == 8),
                  "attn: the positions of tokens are std::int32_t or std::int64_t");
  }

  ATTN_ALWAYS_INLINE constexpr bool is_given() const { return is_given_; }
  ATTN_ALWAYS_INLINE constexpr const Shape4& shape() const { return shape_; }
  /// That of section `s` of token i of batch b. Not checked.
  ATTN_ALWAYS_INLINE Index operator()(Index b, Index i, Index s = 0) const {
    const Index at = (shape_.batch > 1 ? b * stride_.batch : 0) + i * stride_.length +
                     (shape_.dim > 1 ? s * stride_.dim : 0);
    return is_wide_ ? static_cast<Index>(static_cast<const std::int64_t*>(data_)[at])
                    : static_cast<Index>(static_cast<const std::int32_t*>(data_)[at]);
  }
  /// f(view), of the element type that was given.
  template <class F>
  ATTN_ALWAYS_INLINE decltype(auto) visit(const F& f) const {
    if (is_wide_) {
      return f(
          Tensor4<const std::int64_t>(static_cast<const std::int64_t*>(data_), shape_, stride_));
    }
    return f(Tensor4<const std::int32_t>(static_cast<const std::int32_t*>(data_), shape_, stride_));
  }

 private:
  const void* data_ = nullptr;
  Shape4 shape_;
  Stride4 stride_;
  bool is_wide_ = false;
  bool is_given_ = false;
};

}  // namespace attn

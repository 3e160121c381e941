// attn/masks/tensor.hpp - level 7: masks and biases that are tensors of the shape of the scores.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/masks/score_tensor.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
/// A boolean tensor [B|1, Hq|1, Sq|1, Sk|1]; elements that are not zero are true.
class DenseMask : public Mask {
 public:
  template <class T>
  ATTN_ALWAYS_INLINE DenseMask(const Tensor4<T>& view, bool keeps) : view_(view), keeps_(keeps) {
    detail::require_flags<T>();
  }

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    return detail::is_kept(view_, detail::place_of(at, view_.stride), keeps_);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const {
    detail::apply_dense(tile, view_, keeps_);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    if (keeps_) {
      checker.check_score_view("keep_where mask", view_, detail::Role::keep_mask);
    } else {
      checker.check_score_view("drop_where mask", view_, detail::Role::drop_mask);
    }
  }

 private:
  detail::TensorRef view_;
  bool keeps_;
};

/// True keeps the key (PyTorch's scaled_dot_product_attention, ONNX). Size 1 broadcasts.
template <class T>
ATTN_ALWAYS_INLINE DenseMask keep_where(Tensor4<T> mask) {
  return DenseMask(mask, true);
}
/// True drops the key (nn.MultiheadAttention, padding masks). Size 1 broadcasts.
template <class T>
ATTN_ALWAYS_INLINE DenseMask drop_where(Tensor4<T> mask) {
  return DenseMask(mask, false);
}

// A buffer or Eigen matrix serves as its view, and outlives the mask: a temporary does not compile.
template <class T>
ATTN_ALWAYS_INLINE DenseMask keep_where(const Tensor4Buffer<T>& mask) {
  return keep_where(mask.view());
}
template <class T>
DenseMask keep_where(const Tensor4Buffer<T>&&) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
ATTN_ALWAYS_INLINE DenseMask keep_where(Matrix&& mask) {
  return keep_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)));
}
template <class T>
ATTN_ALWAYS_INLINE DenseMask drop_where(const Tensor4Buffer<T>& mask) {
  return drop_where(mask.view());
}
template <class T>
DenseMask drop_where(const Tensor4Buffer<T>&&) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
ATTN_ALWAYS_INLINE DenseMask drop_where(Matrix&& mask) {
  return drop_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)));
}

/// score + bias, from a tensor [B|1, Hq|1, Sq|1, Sk|1]. A bias of -infinity drops the key. A finite
/// one does not, and a double that is too wide for float scores counts as float's largest number;
/// but a sum that overflows to -infinity drops, as that of two biases of lowest() may, and one that
/// overflows to +infinity makes the row NaN.
class BiasMask : public Mask {
 public:
  static constexpr bool kChangesScores = true;

  template <class T>
  ATTN_ALWAYS_INLINE explicit BiasMask(const Tensor4<T>& view) : view_(view) {
    static_assert(detail::is_element_v<std::remove_const_t<T>>,
                  "attn: the elements of add_bias are double, float, Eigen::half or "
                  "Eigen::bfloat16; a boolean mask is keep_where(view) or drop_where(view)");
  }

  ATTN_ALWAYS_INLINE bool allows(const ScorePosition& at) const {
    double bias = 0;
    detail::load_biases(view_, detail::place_of(at, view_.stride), 1, 1, &bias,
                        InstructionSet::generic);
    return !detail::is_negative_infinity(bias);
  }
  // Whether some are -infinity only the tile can tell.
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  ATTN_ALWAYS_INLINE bool modifies() const { return true; }
  template <class A>
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    detail::apply_biases(tile, view_, true);
  }
  template <class A>
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>&) const {}  // modify() has left -infinity there
  template <class A>
  ATTN_ALWAYS_INLINE void reapply(const ScoreTile<A>& tile) const {
    detail::apply_biases(tile, view_, false);
  }
  ATTN_ALWAYS_INLINE void declare(detail::MaskChecker& checker) const {
    checker.check_score_view("add_bias bias", view_, detail::Role::bias);
  }

 private:
  detail::TensorRef view_;
};

template <class T>
ATTN_ALWAYS_INLINE BiasMask add_bias(Tensor4<T> bias) {
  return BiasMask(bias);
}
template <class T>
ATTN_ALWAYS_INLINE BiasMask add_bias(const Tensor4Buffer<T>& bias) {
  return add_bias(bias.view());
}
template <class T>
BiasMask add_bias(const Tensor4Buffer<T>&&) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
ATTN_ALWAYS_INLINE BiasMask add_bias(Matrix&& bias) {
  return add_bias(detail::mask_matrix_view<float>(std::forward<Matrix>(bias)));
}

}  // namespace attn

// attn/masks/tensor.hpp - level 3: masks and biases that are tensors of the shape of the scores.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/float_bits.hpp"
#include "attn/detail/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {

/// A boolean tensor [B|1, Hq|1, Sq|1, Sk|1]; elements that are not zero are true.
class DenseMask : public Mask {
 public:
  template <class T>
  DenseMask(const Tensor4<T>& view, bool keeps, const char* name)
      : given_(view),
        bytes_(reinterpret_cast<const unsigned char*>(view.data())),
        stride_(detail::broadcast_stride(view.shape(), view.stride())),
        keeps_(keeps),
        name_(name) {
    static_assert(std::is_same_v<std::remove_const_t<T>, bool> ||
                      std::is_same_v<std::remove_const_t<T>, std::uint8_t>,
                  "attn: the elements of a boolean mask are bool or std::uint8_t; a floating-point "
                  "mask that is added to the scores is add_bias(view)");
  }

  bool allows(const ScorePosition& at) const { return (*element(at) != 0) == keeps_; }
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  template <class A>
  void apply(const ScoreTile<A>& tile, bool) const {
    const bool keeps = keeps_;
    detail::for_each_with(tile, bytes_, stride_.batch, stride_.heads, stride_.length, stride_.dim,
                          [keeps](A& score, unsigned char element) {
                            score = detail::keep_or_drop(score, (element != 0) == keeps);
                          });
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    checker.check_score_view(name_, given_);
  }

 private:
  const unsigned char* element(const ScorePosition& at) const {
    return bytes_ + at.batch * stride_.batch + at.head * stride_.heads + at.query * stride_.length +
           at.key * stride_.dim;
  }

  detail::TensorRef given_;
  const unsigned char* bytes_;
  Stride4 stride_;
  bool keeps_;
  const char* name_;
};

/// True keeps the key (PyTorch's scaled_dot_product_attention, ONNX). Size 1 broadcasts.
template <class T>
DenseMask keep_where(Tensor4<T> mask) {
  return DenseMask(mask, true, "keep_where mask");
}
/// True drops the key (nn.MultiheadAttention, padding masks). Size 1 broadcasts.
template <class T>
DenseMask drop_where(Tensor4<T> mask) {
  return DenseMask(mask, false, "drop_where mask");
}

// A buffer serves as its view, and outlives the mask: a temporary does not compile.
template <class T>
DenseMask keep_where(const Tensor4Buffer<T>& mask) {
  return keep_where(mask.view());
}
template <class T>
DenseMask keep_where(const Tensor4Buffer<T>&&) = delete;
template <class T>
DenseMask drop_where(const Tensor4Buffer<T>& mask) {
  return drop_where(mask.view());
}
template <class T>
DenseMask drop_where(const Tensor4Buffer<T>&&) = delete;

/// score + bias, from a tensor [B|1, Hq|1, Sq|1, Sk|1]. A bias of -infinity drops the key.
class BiasMask : public Mask {
 public:
  template <class T>
  explicit BiasMask(const Tensor4<T>& view)
      : view_(view), stride_(detail::broadcast_stride(view.shape(), view.stride())) {
    static_assert(detail::is_element_v<std::remove_const_t<T>>,
                  "attn: the elements of add_bias are double, float, Eigen::half or "
                  "Eigen::bfloat16; a boolean mask is keep_where(view) or drop_where(view)");
  }

  bool allows(const ScorePosition& at) const {
    return detail::visit_element(view_.type, [&](auto* type) {
      const auto* first = static_cast<decltype(type)>(view_.data);
      return !detail::is_negative_infinity(static_cast<double>(first[offset(at)]));
    });
  }
  // A finite bias never drops; whether some are -infinity only the tile can tell.
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  bool modifies() const { return true; }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    for_each_bias(tile, [](A& score, A bias) {
      score = detail::keep_or_drop(score + bias, !detail::is_negative_infinity(bias));
    });
  }
  template <class A>
  void apply(const ScoreTile<A>& tile, bool modified_later) const {
    if (!modified_later) return;  // modify() has left -infinity there
    for_each_bias(tile, [](A& score, A bias) {
      score = detail::keep_or_drop(score, !detail::is_negative_infinity(bias));
    });
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    checker.check_score_view("add_bias bias", view_);
  }

 private:
  Index offset(const ScorePosition& at) const {
    return at.batch * stride_.batch + at.head * stride_.heads + at.query * stride_.length +
           at.key * stride_.dim;
  }
  template <class A, class F>
  void for_each_bias(const ScoreTile<A>& tile, const F& f) const {
    detail::visit_element(view_.type, [&](auto* type) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      const auto convert = [](const T& bias) {
        if constexpr (std::is_same_v<T, double>) {
          return detail::clamp_to<A>(bias);
        } else {
          return static_cast<A>(static_cast<float>(bias));
        }
      };
      detail::for_each_with(tile, static_cast<const T*>(view_.data), stride_.batch, stride_.heads,
                            stride_.length, stride_.dim,
                            [&](A& score, const T& bias) { f(score, convert(bias)); });
    });
  }

  detail::TensorRef view_;
  Stride4 stride_;
};

template <class T>
BiasMask add_bias(Tensor4<T> bias) {
  return BiasMask(bias);
}
template <class T>
BiasMask add_bias(const Tensor4Buffer<T>& bias) {
  return add_bias(bias.view());
}
template <class T>
BiasMask add_bias(const Tensor4Buffer<T>&&) = delete;

}  // namespace attn

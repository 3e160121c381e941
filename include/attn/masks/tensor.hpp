// attn/masks/tensor.hpp - level 7: masks and biases that are tensors of the shape of the scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/rows.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Calls f(scores, lines, count, stride, elements) for the parts of a tile, lines of adjacent
/// scores, and the elements at their places in a tensor of (batch, head, query, key), given by its
/// first element and strides (0: broadcast).
template <class A, class Element, class F>
void for_each_with(const ScoreTile<A>& tile, const Element* tensor, const Stride4& stride,
                   const F& f) {
  tile.for_each_part(
      [&](A* scores, Index lines, Index count, Index line_stride, Index head, Index query) {
        const Element* const first = tensor + tile.rows.batch * stride.batch + head * stride.heads +
                                     query * stride.length + tile.keys.begin * stride.dim;
        f(scores, lines, count, line_stride,
          tile.lines_are_keys() ? ScoreElements<Element>{first, stride.dim, stride.length}
                                : ScoreElements<Element>{first, stride.length, stride.dim});
      });
}

/// out[i] = in[i * stride]; what is finite, but too wide for A, becomes its largest or lowest
/// number.
template <class A, class T>
void load_biases(const T* in, Index stride, Index count, A* out, const WidenTable& widen) {
  if constexpr (std::is_same_v<T, double>) {
    for (Index i = 0; i < count; ++i) out[i] = clamp_to<A>(in[i * stride]);
  } else {
    load_elements(in, stride, count, out, widen);
  }
}

/// Calls f(line, entry, lines, count, biases) for blocks of biases, converted to A.
template <class A, class T, class F>
void with_converted(Index lines, Index count, const ScoreElements<T>& biases,
                    const WidenTable& widen, const F& f) {
  if constexpr (std::is_same_v<T, A>) {
    f(0, 0, lines, count, biases);
  } else {
    // Along the axis that is inner in the tensor, mostly the keys'.
    constexpr Index kInner = 64, kOuter = 16;
    A block[kOuter * kInner];
    const bool lines_are_inner = biases.line_stride == 1;
    const Index outer_stride = lines_are_inner ? biases.entry_stride : biases.line_stride;
    const Index inner_stride = lines_are_inner ? biases.line_stride : biases.entry_stride;
    const Index outer_count = lines_are_inner ? count : lines;
    const Index inner_count = lines_are_inner ? lines : count;
    for (Index outer = 0; outer < outer_count; outer += kOuter) {
      const Index outer_size = (std::min)(kOuter, outer_count - outer);
      for (Index inner = 0; inner < inner_count; inner += kInner) {
        const Index inner_size = (std::min)(kInner, inner_count - inner);
        const T* const first = biases.first + outer * outer_stride + inner * inner_stride;
        for (Index i = 0; i < outer_size; ++i) {
          load_biases(first + i * outer_stride, inner_stride, inner_size, block + i * kInner,
                      widen);
        }
        if (lines_are_inner) {
          f(inner, outer, inner_size, outer_size, ScoreElements<A>{block, 1, kInner});
        } else {
          f(outer, inner, outer_size, inner_size, ScoreElements<A>{block, kInner, 1});
        }
      }
    }
  }
}

}  // namespace detail

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
    const auto& kernels = detail::mask_kernels<A>(tile.instruction_set);
    detail::for_each_with(
        tile, bytes_, stride_,
        [&](A* scores, Index lines, Index count, Index stride, const auto& elements) {
          kernels.keep_scores(scores, lines, count, stride, elements, keeps_);
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

/// score + bias, from a tensor [B|1, Hq|1, Sq|1, Sk|1]. A bias of -infinity drops the key. A finite
/// one does not, and a double that is too wide for float scores counts as float's largest number;
/// but a sum that overflows to -infinity drops, as that of two biases of lowest() may, and one that
/// overflows to +infinity makes the row NaN.
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
  // Whether some are -infinity only the tile can tell.
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  bool modifies() const { return true; }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    apply_bias(tile, true);
  }
  template <class A>
  void apply(const ScoreTile<A>& tile, bool modified_later) const {
    if (modified_later) apply_bias(tile, false);  // else modify() has left -infinity there
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    checker.check_score_view("add_bias bias", view_);
  }

 private:
  Index offset(const ScorePosition& at) const {
    return at.batch * stride_.batch + at.head * stride_.heads + at.query * stride_.length +
           at.key * stride_.dim;
  }
  template <class A>
  void apply_bias(const ScoreTile<A>& tile, bool adds) const {
    const auto& kernels = detail::mask_kernels<A>(tile.instruction_set);
    detail::visit_element(view_.type, [&](auto* type) {
      const auto apply = [&](A* scores, Index lines, Index count, Index stride,
                             const auto& elements) {
        const auto apply_block = [&](Index line, Index entry, Index block_lines, Index block_count,
                                     const detail::ScoreElements<A>& biases) {
          kernels.bias_scores(scores + line * stride + entry, block_lines, block_count, stride,
                              biases, adds);
        };
        detail::with_converted<A>(lines, count, elements, detail::widening(tile.instruction_set),
                                  apply_block);
      };
      detail::for_each_with(tile, static_cast<decltype(type)>(view_.data), stride_, apply);
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

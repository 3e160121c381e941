// attn/masks/tensor.hpp - level 7: masks and biases that are tensors of the shape of the scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/number_formats.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/masks/concept.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Where the elements of a mask or bias lie (an axis of length 1 has stride 0 in a TensorRef, which
/// broadcasts it) that belong to lines of scores: entry i of line l is
/// element offset + l * line_stride + i * entry_stride.
struct ScorePlaces {
  Index offset, line_stride, entry_stride;
};

inline Index place_of(const ScorePosition& at, const Stride4& stride) {
  return at.batch * stride.batch + at.head * stride.heads + at.query * stride.length +
         at.key * stride.dim;
}

/// Calls f(scores, lines, count, stride, places) for the parts of a tile, lines of adjacent scores,
/// and their places in a tensor of (batch, head, query, key) with these strides (0: broadcast).
template <class A, class F>
void for_each_with(const ScoreTile<A>& tile, const Stride4& stride, const F& f) {
  tile.for_each_part(
      [&](A* scores, Index lines, Index count, Index line_stride, Index head, Index query) {
        const Index offset = tile.rows.batch * stride.batch + head * stride.heads +
                             query * stride.length + tile.keys.begin * stride.dim;
        f(scores, lines, count, line_stride,
          tile.lines_are_keys() ? ScorePlaces{offset, stride.dim, stride.length}
                                : ScorePlaces{offset, stride.length, stride.dim});
      });
}

/// out[i] = element offset + i * stride of a bias; what is finite, but too wide for A, becomes its
/// largest or lowest number.
template <class A>
void load_biases(const TensorRef& bias, Index offset, Index stride, Index count, A* out,
                 const WidenTable& widen) {
  if constexpr (std::is_same_v<A, float>) {
    if (bias.format->type == NumberType::float64) {
      const double* const first = static_cast<const double*>(bias.data) + offset;
      for (Index i = 0; i < count; ++i) out[i] = clamp_to<A>(first[i * stride]);
      return;
    }
  }
  bias.format->load(bias.data, offset, stride, count, out, widen);
}

/// Calls f(line, entry, lines, count, biases) for blocks of biases, as they lie or converted to A.
template <class A, class F>
void with_converted(const TensorRef& bias, const ScorePlaces& places, Index lines, Index count,
                    const WidenTable& widen, const F& f) {
  if (bias.format->type == kPlainType<A>) {
    f(0, 0, lines, count,
      ScoreElements<A>{static_cast<const A*>(bias.data) + places.offset, places.line_stride,
                       places.entry_stride});
    return;
  }
  // Along the axis that is inner in the tensor, mostly the keys'.
  constexpr Index kInner = 64, kOuter = 16;
  A block[kOuter * kInner];
  const bool lines_are_inner = places.line_stride == 1;
  const Index outer_stride = lines_are_inner ? places.entry_stride : places.line_stride;
  const Index inner_stride = lines_are_inner ? places.line_stride : places.entry_stride;
  const Index outer_count = lines_are_inner ? count : lines;
  const Index inner_count = lines_are_inner ? lines : count;
  for (Index outer = 0; outer < outer_count; outer += kOuter) {
    const Index outer_size = (std::min)(kOuter, outer_count - outer);
    for (Index inner = 0; inner < inner_count; inner += kInner) {
      const Index inner_size = (std::min)(kInner, inner_count - inner);
      const Index first = places.offset + outer * outer_stride + inner * inner_stride;
      for (Index i = 0; i < outer_size; ++i) {
        load_biases(bias, first + i * outer_stride, inner_stride, inner_size, block + i * kInner,
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

}  // namespace detail

namespace detail {

/// Whether an argument in the place of a mask tensor is neither a Tensor4 nor a Tensor4Buffer.
template <class Argument>
inline constexpr bool is_matrix_or_wrong_v =
    !is_tensor_v<Argument> ||
    has_eigen_memory_v<std::remove_cv_t<std::remove_reference_t<Argument>>>;

/// An Eigen matrix [Sq|1, Sk|1] in the place of a mask tensor; T is for what is none.
template <class T, class Argument>
auto mask_matrix_view(Argument&& argument) {
  using Plain = std::remove_cv_t<std::remove_reference_t<Argument>>;
  static_assert(has_eigen_memory_v<Plain>,
                "attn: a mask or bias is an attn::Tensor4 view [B|1, Hq|1, Sq|1, Sk|1] or an Eigen "
                "matrix [Sq|1, Sk|1]; a std::vector is viewed through its data(), but one of bool, "
                "which holds bits, must be copied to std::uint8_t first");
  static_assert(!is_plain_v<Plain> || std::is_lvalue_reference_v<Argument>,
                "attn: a mask keeps a view of its matrix, which must not be a temporary");
  if constexpr (has_eigen_memory_v<Plain>) {
    return view_tokens(argument, 1, 1);
  } else {
    return Tensor4<const T>();
  }
}

}  // namespace detail

/// A boolean tensor [B|1, Hq|1, Sq|1, Sk|1]; elements that are not zero are true.
class DenseMask : public Mask {
 public:
  template <class T>
  DenseMask(const Tensor4<T>& view, bool keeps) : view_(view), keeps_(keeps) {
    static_assert(std::is_same_v<std::remove_const_t<T>, bool> ||
                      std::is_same_v<std::remove_const_t<T>, std::uint8_t>,
                  "attn: the elements of a boolean mask are bool or std::uint8_t; a floating-point "
                  "mask that is added to the scores is add_bias(view)");
  }

  bool allows(const ScorePosition& at) const {
    return (bytes()[detail::place_of(at, view_.stride)] != 0) == keeps_;
  }
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    const auto& kernels = detail::mask_kernels<A>(tile.instruction_set);
    detail::for_each_with(
        tile, view_.stride,
        [&](A* scores, Index lines, Index count, Index stride, const detail::ScorePlaces& places) {
          kernels.keep_scores(scores, lines, count, stride,
                              {bytes() + places.offset, places.line_stride, places.entry_stride},
                              keeps_);
        });
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    if (keeps_) {
      checker.check_score_view("keep_where mask", view_, detail::Role::keep_mask);
    } else {
      checker.check_score_view("drop_where mask", view_, detail::Role::drop_mask);
    }
  }

 private:
  const unsigned char* bytes() const { return static_cast<const unsigned char*>(view_.data); }

  detail::TensorRef view_;
  bool keeps_;
};

/// True keeps the key (PyTorch's scaled_dot_product_attention, ONNX). Size 1 broadcasts.
template <class T>
DenseMask keep_where(Tensor4<T> mask) {
  return DenseMask(mask, true);
}
/// True drops the key (nn.MultiheadAttention, padding masks). Size 1 broadcasts.
template <class T>
DenseMask drop_where(Tensor4<T> mask) {
  return DenseMask(mask, false);
}

// A buffer or Eigen matrix serves as its view, and outlives the mask: a temporary does not compile.
template <class T>
DenseMask keep_where(const Tensor4Buffer<T>& mask) {
  return keep_where(mask.view());
}
template <class T>
DenseMask keep_where(const Tensor4Buffer<T>&&) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
DenseMask keep_where(Matrix&& mask) {
  return keep_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)));
}
template <class T>
DenseMask drop_where(const Tensor4Buffer<T>& mask) {
  return drop_where(mask.view());
}
template <class T>
DenseMask drop_where(const Tensor4Buffer<T>&&) = delete;
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
DenseMask drop_where(Matrix&& mask) {
  return drop_where(detail::mask_matrix_view<bool>(std::forward<Matrix>(mask)));
}

/// score + bias, from a tensor [B|1, Hq|1, Sq|1, Sk|1]. A bias of -infinity drops the key. A finite
/// one does not, and a double that is too wide for float scores counts as float's largest number;
/// but a sum that overflows to -infinity drops, as that of two biases of lowest() may, and one that
/// overflows to +infinity makes the row NaN.
class BiasMask : public Mask {
 public:
  template <class T>
  explicit BiasMask(const Tensor4<T>& view) : view_(view) {
    static_assert(detail::is_element_v<std::remove_const_t<T>>,
                  "attn: the elements of add_bias are double, float, Eigen::half or "
                  "Eigen::bfloat16; a boolean mask is keep_where(view) or drop_where(view)");
  }

  bool allows(const ScorePosition& at) const {
    double bias = 0;
    detail::load_biases(view_, detail::place_of(at, view_.stride), 1, 1, &bias,
                        detail::widening(InstructionSet::generic));
    return !detail::is_negative_infinity(bias);
  }
  // Whether some are -infinity only the tile can tell.
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  bool modifies() const { return true; }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    apply_bias(tile, true);
  }
  template <class A>
  void apply(const ScoreTile<A>&) const {}  // modify() has left -infinity there
  template <class A>
  void reapply(const ScoreTile<A>& tile) const {
    apply_bias(tile, false);
  }
  ATTN_ALWAYS_INLINE void check(detail::MaskChecker& checker) const {
    checker.check_score_view("add_bias bias", view_, detail::Role::bias);
  }

 private:
  template <class A>
  void apply_bias(const ScoreTile<A>& tile, bool adds) const {
    const auto& kernels = detail::mask_kernels<A>(tile.instruction_set);
    const auto& widen = detail::widening(tile.instruction_set);
    const auto apply = [&](A* scores, Index lines, Index count, Index stride,
                           const detail::ScorePlaces& places) {
      const auto apply_block = [&](Index line, Index entry, Index block_lines, Index block_count,
                                   const detail::ScoreElements<A>& biases) {
        kernels.bias_scores(scores + line * stride + entry, block_lines, block_count, stride,
                            biases, adds);
      };
      detail::with_converted<A>(view_, places, lines, count, widen, apply_block);
    };
    detail::for_each_with(tile, view_.stride, apply);
  }

  detail::TensorRef view_;
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
template <class Matrix, std::enable_if_t<detail::is_matrix_or_wrong_v<Matrix>, int> = 0>
BiasMask add_bias(Matrix&& bias) {
  return add_bias(detail::mask_matrix_view<float>(std::forward<Matrix>(bias)));
}

}  // namespace attn

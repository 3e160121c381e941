// attn/detail/masks/score_tensor.hpp - level 6: tensors of the shape of the scores, at the places
// of a tile.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/masks/band.hpp"
#include "attn/detail/rows/number_formats.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

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
/// and their places in a tensor of (batch, head, query, key) with these strides (0: broadcast),
/// whose keys begin with `first_key`.
template <class A, class F>
void for_each_with(const ScoreTile<A>& tile, const Stride4& stride, Index first_key, const F& f) {
  tile.for_each_part(
      [&](A* scores, Index lines, Index count, Index line_stride, Index head, Index query) {
        const Index offset = tile.rows.batch * stride.batch + head * stride.heads +
                             query * stride.length + (tile.keys.begin - first_key) * stride.dim;
        f(scores, lines, count, line_stride,
          tile.lines_are_keys() ? ScorePlaces{offset, stride.dim, stride.length}
                                : ScorePlaces{offset, stride.length, stride.dim});
      });
}

/// out[i] = element offset + i * stride of a bias; what is finite, but too wide for A, becomes its
/// largest or lowest number.
template <class A>
void load_biases(const TensorRef& bias, Index offset, Index stride, Index count, A* out,
                 InstructionSet set) {
  if constexpr (std::is_same_v<A, float>) {
    if (bias.format->type == NumberType::float64) {
      const double* const first = static_cast<const double*>(bias.data) + offset;
      for (Index i = 0; i < count; ++i) out[i] = clamp_to<A>(first[i * stride]);
      return;
    }
  }
  bias.format->load(bias.data, offset, stride, count, out, set);
}

/// Calls f(line, entry, lines, count, biases) for blocks of biases, as they lie or converted to A.
template <class A, class F>
void with_converted(const TensorRef& bias, const ScorePlaces& places, Index lines, Index count,
                    InstructionSet set, const F& f) {
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
                    set);
      }
      if (lines_are_inner) {
        f(inner, outer, inner_size, outer_size, ScoreElements<A>{block, 1, kInner});
      } else {
        f(outer, inner, outer_size, inner_size, ScoreElements<A>{block, kInner, 1});
      }
    }
  }
}

template <class T>
constexpr void require_flags() {
  static_assert(std::is_same_v<std::remove_const_t<T>, bool> ||
                    std::is_same_v<std::remove_const_t<T>, std::uint8_t>,
                "attn: the elements of a boolean mask are bool or std::uint8_t; a floating-point "
                "mask that is added to the scores is add_bias(view)");
}

/// Whether the flag at this element says that the key is kept.
inline bool is_kept(const TensorRef& mask, Index place, bool keeps) {
  return (static_cast<const unsigned char*>(mask.data)[place] != 0) == keeps;
}

/// Drops the keys of a tile where a boolean tensor, whose keys begin with `first_key`, says so.
template <class A>
void apply_dense(const ScoreTile<A>& tile, const TensorRef& mask, bool keeps, Index first_key = 0) {
  const auto& kernels = mask_kernels<A>(tile.instruction_set);
  const auto* const bytes = static_cast<const unsigned char*>(mask.data);
  for_each_with(tile, mask.stride, first_key,
                [&](A* scores, Index lines, Index count, Index stride, const ScorePlaces& places) {
                  kernels.keep_scores(
                      scores, lines, count, stride,
                      {bytes + places.offset, places.line_stride, places.entry_stride}, keeps);
                });
}

/// The same of a tensor that holds the keys `held` alone: those before are kept, those behind are
/// dropped.
template <class A>
void apply_new_keys(const ScoreTile<A>& tile, const TensorRef& mask, bool keeps, KeyRange held) {
  drop_outside(tile, {tile.keys.begin, held.end});
  ScoreTile<A> part = tile;
  part.keys = tile.keys & held;
  if (part.keys.empty()) return;
  part.scores = &tile(0, part.keys.begin);
  apply_dense(part, mask, keeps, held.begin);
}

/// Adds the biases, or (not `adds`) does again what those of -infinity did.
template <class A>
void apply_biases(const ScoreTile<A>& tile, const TensorRef& bias, bool adds) {
  const auto& kernels = mask_kernels<A>(tile.instruction_set);
  const auto apply = [&](A* scores, Index lines, Index count, Index stride,
                         const ScorePlaces& places) {
    const auto apply_block = [&](Index line, Index entry, Index block_lines, Index block_count,
                                 const ScoreElements<A>& biases) {
      kernels.bias_scores(scores + line * stride + entry, block_lines, block_count, stride, biases,
                          adds);
    };
    with_converted<A>(bias, places, lines, count, tile.instruction_set, apply_block);
  };
  for_each_with(tile, bias.stride, 0, apply);
}

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

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

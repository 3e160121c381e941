// attn/detail/projection/rotary_positions.hpp - level 13: positions of tokens as an input of a
// call.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/token_positions.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

inline TensorRef ref_of(const TokenPositions& positions) {
  return positions.visit([](const auto& view) { return TensorRef(view); });
}

inline void add_positions(CallShapes& call, const char* name, const TokenPositions& positions) {
  call.add_input(name, ref_of(positions));
}

/// Refuses positions that are not those of `batch` x `length` tokens of `tensor`, turned by an
/// embedding of `sections`.
inline void check_positions(const CallShapes& call, const char* name,
                            const TokenPositions& positions, const char* tensor, Index batch,
                            Index length, Index sections) {
  const Shape4& s = positions.shape();
  if ((s.batch == batch || s.batch == 1) && s.heads == 1 && s.length == length &&
      (s.dim == 1 || s.dim == sections)) {
    return;
  }
  const char* const rule[] = {" must be [batch of ", " or 1, 1, length of ", ", 1"};
  if (sections == 1) call.raise_shape({name, rule[0], tensor, rule[1], tensor, rule[2], "]"});
  call.raise_shape({name, rule[0], tensor, rule[1], tensor, rule[2], " or the ", sections,
                    " sections of the rotary embedding]"});
}

/// The positions of `count` tokens of batch b, from token `first` on.
inline TokenPositions part_of(const TokenPositions& positions, Index b, Index first, Index count) {
  return positions.visit([&](const auto& view) {
    return TokenPositions(view.slice_batch(view.batch() > 1 ? b : 0, 1).slice_length(first, count));
  });
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

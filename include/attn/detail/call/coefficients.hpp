// attn/detail/call/coefficients.hpp - level 5: biases and factors as inputs of a call.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/coefficients.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// `count` coefficients as a tensor [1, 1, 1, count]; null if there are none.
template <class T>
TensorRef row_of(const Coefficients<T>& coefficients, Index count) {
  return TensorRef(Tensor4<const T>(coefficients.data(), Shape4{1, 1, 1, count}));
}

/// Adds coefficients, if there are any, to the inputs of a call.
template <class T>
void add_coefficients(CallShapes& call, const char* name, const Coefficients<T>& coefficients,
                      Index count) {
  const bool is_counted = coefficients.is_counted();
  if (is_counted ? coefficients.size() == 0 : coefficients.data() == nullptr) return;
  call.add_input(name, row_of(coefficients, is_counted ? coefficients.size() : count));
}

/// Refuses coefficients that are known to be more or fewer than `count`, one for each `feature`.
template <class T>
void require_count(const CallShapes& call, const char* name, const Coefficients<T>& coefficients,
                   const char* feature, Index count) {
  if (!coefficients.is_counted() || coefficients.size() == 0 || coefficients.size() == count) {
    return;
  }
  call.raise_shape(std::string(name) + " must hold one number " + feature + ", " +
                   std::to_string(count) + ", got " + std::to_string(coefficients.size()));
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// tests/support/plain_tiles.hpp - the matrix unit in plain C++, and attention over it: what
// detail/matrix_unit.hpp computes on AMX, bit by bit, on any machine.
#pragma once

#include <Eigen/Core>

#include "attn/attention.hpp"

namespace attn {
namespace test {

/// A matrix unit that every machine has.
const detail::MatrixUnit& plain_matrix_unit();

/// A call of attention as the driver runs it where the CPU has a matrix unit. Returns whether the
/// call is one for the unit.
template <class O, class M = NoMask>
bool attend_with(const detail::MatrixUnit* unit, Tensor4<const Eigen::bfloat16> q,
                 const detail::KeyValueSource& source, const PerBatch* past, Tensor4<O> out,
                 const M& mask = M(), const AttentionOptions& options = {},
                 const AttentionOutputs<float>& extra = {}) {
  detail::CallShapes shapes("attend_with");
  detail::AttentionCall<float> call = detail::describe_call<float>(
      shapes, detail::TensorRef(q), source, past, detail::TensorRef(out), mask, options, extra);
  call.plan_work(unit);
  detail::run_attention(shapes, call, options);
  return call.matrix_unit != nullptr;
}
template <class O, class M = NoMask>
bool attend_with(const detail::MatrixUnit* unit, Tensor4<const Eigen::bfloat16> q,
                 Tensor4<const Eigen::bfloat16> k, Tensor4<const Eigen::bfloat16> v, Tensor4<O> out,
                 const M& mask = M(), const AttentionOptions& options = {},
                 const AttentionOutputs<float>& extra = {}) {
  return attend_with(unit, q, {detail::TensorRef(k), detail::TensorRef(v)}, nullptr, out, mask,
                     options, extra);
}

}  // namespace test
}  // namespace attn

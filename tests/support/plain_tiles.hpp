// tests/support/plain_tiles.hpp - the matrix units in plain C++, and attention over them: what AMX
// and AVX512_BF16 compute, bit by bit, on any machine.
#pragma once

#include <Eigen/Core>
#include <vector>

#include "attn/attention.hpp"

namespace attn {
namespace test {

/// The model of detail::amx_unit.
const detail::MatrixUnit& plain_tiles();
/// The model of detail::bf16_dots_unit.
const detail::MatrixUnit& plain_dots();

/// Both kinds of unit: the CPU's where it has them, else their models.
std::vector<const detail::MatrixUnit*> matrix_units();
/// The model of a unit; a model is its own.
const detail::MatrixUnit& model_of(const detail::MatrixUnit& unit);

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
  detail::plan_work(call, unit);
  detail::run_attention(shapes, call, options);
  return call.kernels.matrix_unit != nullptr;
}
template <class O, class M = NoMask>
bool attend_with(const detail::MatrixUnit* unit, Tensor4<const Eigen::bfloat16> q,
                 Tensor4<const Eigen::bfloat16> k, Tensor4<const Eigen::bfloat16> v, Tensor4<O> out,
                 const M& mask = M(), const AttentionOptions& options = {},
                 const AttentionOutputs<float>& extra = {}) {
  return attend_with(unit, q, detail::keys_and_values(k, v), nullptr, out, mask, options, extra);
}

}  // namespace test
}  // namespace attn

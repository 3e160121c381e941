// attn/detail/layers/block_pass.hpp - level 15: what surrounds a layer in a block: dropout, the
// residual, normalisation.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/layers/layer_arguments.hpp"
#include "attn/detail/layers/layer_pass.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/projection/normalize.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"
#include "attn/layers/norm_weights.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// What surrounds the layer of a block.
template <class T>
struct BlockSettings {
  double dropout = 0;
  LayerNormWeights<T> norm;
};

template <class T>
BlockSettings<T> check_settings(const BlockSettings<T>& settings, Index model_dim) {
  CallShapes call("AttentionBlock");
  add_coefficients(call, "gamma", settings.norm.gamma, model_dim);
  add_coefficients(call, "beta", settings.norm.beta, model_dim);
  require_count(call, "gamma", settings.norm.gamma, "a feature", model_dim);
  require_count(call, "beta", settings.norm.beta, "a feature", model_dim);
  const double p = settings.dropout;
  if (!is_finite(p) || p < 0 || p > 1) {
    raise_option_error("AttentionBlock: dropout must lie within 0 and 1, got " + general(p));
  }
  if (!is_valid_epsilon(settings.norm.epsilon)) {
    raise_option_error("AttentionBlock: epsilon must be finite and 0 or more, got " +
                       general(settings.norm.epsilon));
  }
  return settings;
}

/// Dropout on the features [B, 1, S, D]: each is dropped or scaled up.
template <class T>
void drop_features(const Tensor4<T>& features, const Dropout& dropout, Executor* executor) {
  using A = AccumulationType<T>;
  const std::uint64_t threshold = dropout_threshold(dropout.probability);
  const A scale =
      dropout.probability < 1 ? static_cast<A>(1.0 / (1.0 - dropout.probability)) : A(0);
  const Index length = features.length();
  for_each_item(executor, worker_count(executor), features.batch() * length,
                [&](Index, Index item) {
                  const Index batch = item / length, row = item % length;
                  const RandomPlane plane(RandomPlane::Stream::block_features, dropout.seed,
                                          dropout.offset, batch, 0);
                  plane.for_each(row, 0, features.dim(), [&](Index column, std::uint32_t bits) {
                    T& value = features(batch, 0, row, column);
                    value = bits < threshold ? T(0) : round_to<T>(static_cast<A>(value) * scale);
                  });
                });
}

/// out = LayerNorm(out + residual), row by row.
template <class T>
void add_and_normalize(const Tensor4<T>& out, const Tensor4<const T>& residual,
                       const LayerNormWeights<T>& norm, Executor* executor) {
  using A = AccumulationType<T>;
  const Index length = out.length(), dim = out.dim();
  for_each_item(executor, worker_count(executor), out.batch() * length, [&](Index, Index item) {
    T* const row = &out(item / length, 0, item % length, 0);
    const T* const added = &residual(item / length, 0, item % length, 0);
    const Index stride = out.stride().dim, added_stride = residual.stride().dim;
    for (Index d = 0; d < dim; ++d) {
      T& value = row[d * stride];
      value = round_to<T>(static_cast<A>(value) + static_cast<A>(added[d * added_stride]));
    }
    normalize_row<A>(row, stride, dim, norm, row, stride);
  });
}

template <class T>
void run_block(const LayerWeights<T>& layer, const BlockSettings<T>& settings,
               const LayerInputs<T>& inputs, const Tensor4<T>& out,
               const ErasedMask<AccumulationType<T>>& mask, AttentionOptions options,
               const AttentionOutputs<AccumulationType<T>>& extra, bool is_training,
               const CallRotary& rotary) {
  LayerPass<T> pass("AttentionBlock::forward", layer, inputs);
  pass.set_outputs({out, extra, options.workspace});
  const Index dim = layer.config.model_dim;
  pass.require_apart("gamma of the block", row_of(settings.norm.gamma, dim));
  pass.require_apart("beta of the block", row_of(settings.norm.beta, dim));
  if (options.dropout.probability != 0) {
    pass.shapes().raise_option(
        "options.dropout.probability must be 0: the block has a dropout of its own, which "
        "BlockMode::training turns on; got " +
        general(options.dropout.probability));
  }
  if (is_training) options.dropout.probability = settings.dropout;
  pass.prepare(mask, options);
  pass.set_rotary(rotary);
  pass.allocate("attention().workspace_bytes");
  pass.project_inputs();
  pass.transform_heads(0);
  pass.attend();
  if (options.dropout.probability > 0) {
    drop_features(pass.heads(), options.dropout, pass.executor());
  }
  pass.project_output();
  add_and_normalize(out, inputs.query, settings.norm, pass.executor());
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

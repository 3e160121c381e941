// attn/detail/layers/layer_arguments.hpp - level 15: the tensors of a pass through an attention
// layer, and what can be wrong with them.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/overlap.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

/// What is projected: [B, 1, Sq, model_dim], [B|1, 1, Sk, key_input_dim] and
/// [B|1, 1, Sk, value_input_dim]. In self-attention all three are one tensor; in a pass that only
/// reads a cache Sk is 0, and in one that only appends to it Sq is.
template <class T>
struct LayerInputs {
  Tensor4<const T> query, key, value;
  bool is_self = false;
};

/// What is written: out [B, 1, Sq, model_dim], the extra outputs that are set, and the memory that
/// the pass works in.
template <class T>
struct LayerOutputs {
  Tensor4<T> out;
  AttentionOutputs<AccumulationType<T>> extra;
  Workspace workspace;
};

/// What a call says about rotary positions: by whose angles heads turn (null: the layer's), and
/// where its tokens stand (not given: where HeadTransform says). In self-attention the positions
/// of queries and keys are one view.
struct CallRotary {
  const RotaryEmbedding* embedding = nullptr;
  TokenPositions query = {}, key = {};
};

inline namespace ATTN_BUILD {

template <class T>
void check_layer_inputs(CallShapes& shapes, const LayerWeights<T>& layer,
                        const LayerInputs<T>& inputs) {
  const AttentionConfig& config = layer.config;
  const Tensor4<const T>&query = inputs.query, &key = inputs.key, &value = inputs.value;
  const char* const query_name = inputs.is_self ? "x" : "query";
  const char* const key_name = inputs.is_self ? "x" : "key";
  const char* const value_name = inputs.is_self ? "x" : "value";
  shapes.add_input(query_name, TensorRef(query));
  if (!inputs.is_self) {
    shapes.add_input(key_name, TensorRef(key));
    shapes.add_input(value_name, TensorRef(value));
  }
  const auto require_dim = [&](const char* name, const Tensor4<const T>& tensor,
                               const char* dim_name, Index dim) {
    if (tensor.heads() == 1 && tensor.dim() == dim) return;
    shapes.raise_shape(std::string(name) + " must be [batch, 1, length, " + dim_name + "] with " +
                       dim_name + ' ' + std::to_string(dim));
  };
  require_dim(query_name, query, "model_dim", config.model_dim);
  require_dim(key_name, key, "key_input_dim", config.key_input_dim);
  require_dim(value_name, value, "value_input_dim", config.value_input_dim);
  shapes.expect(key.batch() == query.batch() || key.batch() == 1,
                "key must have the batch of query, or 1");
  shapes.expect(value.batch() == query.batch() || value.batch() == 1,
                "value must have the batch of query, or 1");
  shapes.expect(key.length() == value.length(), "key and value must have the same length");
}

/// Refuses outputs and a workspace that overlap `input`.
template <class T>
void require_apart(const CallShapes& shapes, const LayerOutputs<T>& outputs, const char* name,
                   const TensorRef& input) {
  const auto refuse = [&](const char* written, bool overlap) {
    if (overlap) shapes.raise_shape(std::string(written) + " overlaps " + name + " in memory");
  };
  refuse("out", overlaps(TensorRef(outputs.out), input));
  refuse("weights", overlaps(TensorRef(outputs.extra.weights), input));
  refuse("log_sum_exp", overlaps(TensorRef(outputs.extra.log_sum_exp), input));
  refuse("options.workspace", overlaps(outputs.workspace, input));
}

/// What a layer holds is tested here, and stays out of the texts: up to ten tensors.
template <class T>
void check_layer_outputs(CallShapes& shapes, const LayerWeights<T>& layer,
                         const LayerInputs<T>& inputs, const LayerOutputs<T>& outputs) {
  const auto add = [&](const char* name, const TensorRef& output, const Shape4& shape,
                       const char* rule) {
    shapes.add_output(name, output);
    shapes.expect(output.shape == shape, rule);
  };
  const Index batch = inputs.query.batch(), length = inputs.query.length();
  const Index heads = layer.config.num_heads;
  const AttentionOutputs<AccumulationType<T>>& extra = outputs.extra;
  add("out", TensorRef(outputs.out), Shape4{batch, 1, length, layer.config.model_dim},
      "out must be [batch of query, 1, length of query, model_dim]");
  if (extra.weights.shape() != Shape4{}) {
    add("weights", TensorRef(extra.weights), Shape4{batch, heads, length, inputs.key.length()},
        "weights must be [batch of query, num_heads, length of query, length of key]");
  }
  if (extra.log_sum_exp.shape() != Shape4{}) {
    add("log_sum_exp", TensorRef(extra.log_sum_exp), Shape4{batch, heads, length, 1},
        "log_sum_exp must be [batch of query, num_heads, length of query, 1]");
  }
  const auto require_all_apart = [&](const char* name, const TensorRef& input) {
    require_apart(shapes, outputs, name, input);
  };
  for (const LinearWeights<T>* weights : {&layer.query, &layer.key, &layer.value, &layer.output}) {
    require_all_apart("a weight of the layer", TensorRef(weights->weight));
    require_all_apart("a bias of the layer", row_of(weights->bias, weights->weight.length()));
  }
  for (const auto* norm : {&layer.transform.query_norm, &layer.transform.key_norm}) {
    if (!*norm) continue;
    require_all_apart("a norm of the layer", row_of((*norm)->gamma, layer.config.head_dim));
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

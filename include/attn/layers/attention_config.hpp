// attn/layers/attention_config.hpp - level 3: the sizes of an attention layer.
#pragma once

#include "attn/config.hpp"

namespace attn {

/// The sizes of an attention layer. A 0 stands for the default named beside it. Layers and costs
/// refuse, by OptionError, sizes whose weights overflow an Index in bytes (counted as double).
struct AttentionConfig {
  Index model_dim = 0;        ///< of queries and of the output; at least 1
  Index num_heads = 0;        ///< query heads; at least 1
  Index num_kv_heads = 0;     ///< key and value heads; divides num_heads. 0: num_heads (MQA: 1)
  Index head_dim = 0;         ///< of queries and keys. 0: model_dim / num_heads, a whole number
  Index value_dim = 0;        ///< of values. 0: head_dim
  Index key_input_dim = 0;    ///< of what keys are projected from. 0: model_dim
  Index value_input_dim = 0;  ///< of what values are projected from. 0: model_dim
  bool bias = true;           ///< whether a layer that owns its weights has biases
};

}  // namespace attn

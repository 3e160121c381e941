// attn/layers/initialization.hpp - level 1: how layers draw weights.
#pragma once

namespace attn {

/// How a layer that owns its weights fills them.
enum class Initialization {
  linear_uniform,  ///< as PyTorch's Linear: weight and bias uniform within 1 / sqrt(in)
  xavier_uniform  ///< weight uniform within sqrt(6 / (in + out)), bias 0. X. Glorot, Y. Bengio 2010
};

}  // namespace attn

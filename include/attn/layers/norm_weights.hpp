// attn/layers/norm_weights.hpp - level 6: what normalisations scale and shift by.
#pragma once

#include "attn/config.hpp"
#include "attn/layers/coefficients.hpp"

namespace attn {

/// What layer normalisation scales and shifts by. Views: they own nothing.
template <class T>
struct LayerNormWeights {
  Coefficients<T> gamma = nullptr;  ///< `dim` factors, or none: 1; a bare pointer: unchecked
  Coefficients<T> beta = nullptr;   ///< `dim` summands, or none: 0; a bare pointer: unchecked
  double epsilon = 1e-5;            ///< added to the variance; finite, 0 or more
};

/// What RMS normalisation scales by. A view: it owns nothing. (Gemma's checkpoints store gamma
/// - 1.)
template <class T>
struct RmsNormWeights {
  Coefficients<T> gamma = nullptr;  ///< `dim` factors, or none: 1; a bare pointer: unchecked
  double epsilon = 1e-6;            ///< added to the mean square; finite, 0 or more
};

}  // namespace attn

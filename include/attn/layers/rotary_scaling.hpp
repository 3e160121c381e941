// attn/layers/rotary_scaling.hpp - level 3: the frequencies of rotary embeddings, and how they are
// stretched for contexts longer than those of the training.
#pragma once

#include <optional>

#include "attn/config.hpp"

namespace attn {

/// A rule that changes the frequencies f(i) = base^(-2 i / rotary_dim) of a rotary embedding. Made
/// by the functions below; their numbers stand in a model's configuration.
struct RotaryScaling {
  enum class Kind { none, linear, dynamic_ntk, yarn, llama3, longrope };

  Kind kind = Kind::none;
  double factor = 1;                       ///< how much longer contexts shall be
  Index original_length = 0;               ///< positions that the model was trained on
  Index length = 0;                        ///< dynamic_ntk, longrope: positions that will be used
  double beta_fast = 32, beta_slow = 1;    ///< yarn: turns within original_length, see there
  std::optional<double> attention_factor;  ///< yarn, longrope; unset: see there
  bool whole_pairs = true;                 ///< yarn: the ramp begins and ends at whole pairs
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  /// longrope: one a pair, read when the embedding is made.
  Span<const double> short_factors, long_factors;

  ATTN_ALWAYS_INLINE static RotaryScaling none() { return {}; }
  /// f / factor. Source: S. Chen et al., "Extending context window of large language models via
  /// positional interpolation" (2023).
  ATTN_ALWAYS_INLINE static RotaryScaling linear(double factor) {
    RotaryScaling scaling;
    scaling.kind = Kind::linear;
    scaling.factor = factor;
    return scaling;
  }
  /// A larger base: base * (factor * length / original_length - factor + 1)^(d / (d - 2)), d the
  /// rotary_dim; none up to original_length. The embedding is made for one `length`: cached keys
  /// keep the angles that they were given. Source: bloc97 and emozilla (2023), as described by
  /// B. Peng et al. (see yarn).
  ATTN_ALWAYS_INLINE static RotaryScaling dynamic_ntk(double factor, Index original_length,
                                                      Index length) {
    RotaryScaling scaling = linear(factor);
    scaling.kind = Kind::dynamic_ntk;
    scaling.original_length = original_length;
    scaling.length = length;
    return scaling;
  }
  /// Pairs that turn more than beta_fast times within original_length keep f, those that turn less
  /// than beta_slow times get f / factor, and those between a mix, linear in i. Turned elements are
  /// multiplied by attention_factor, unset: 0.1 ln(factor) + 1. Source: B. Peng et al., "YaRN:
  /// efficient context window extension of large language models" (2023), with the ramp over pairs
  /// of the authors' code.
  ATTN_ALWAYS_INLINE static RotaryScaling yarn(double factor, Index original_length) {
    RotaryScaling scaling = linear(factor);
    scaling.kind = Kind::yarn;
    scaling.original_length = original_length;
    return scaling;
  }
  /// With the wavelength w = 2 pi / f: f where w < original_length / high_frequency_factor, f /
  /// factor where w > original_length / low_frequency_factor, and between the mix
  /// f * (s + (1 - s) / factor), s = (original_length / w - low) / (high - low).
  /// Source: the reference code of Llama 3.1 (Meta, 2024).
  ATTN_ALWAYS_INLINE static RotaryScaling llama3(double factor, Index original_length,
                                                 double low_frequency_factor = 1,
                                                 double high_frequency_factor = 4) {
    RotaryScaling scaling = linear(factor);
    scaling.kind = Kind::llama3;
    scaling.original_length = original_length;
    scaling.low_frequency_factor = low_frequency_factor;
    scaling.high_frequency_factor = high_frequency_factor;
    return scaling;
  }
  /// f(i) / factors[i], with the long factors where length > original_length, else the short ones.
  /// Turned elements are multiplied by attention_factor whichever it is, unset:
  /// sqrt(1 + ln(factor) / ln(original_length)), 1 for a factor of at most 1. In a model's
  /// configuration factor is max_position_embeddings / original_max_position_embeddings.
  ///
  /// `length` is that of the whole sequence, its prompt and what will be generated, and decides for
  /// every token of it: keys that were turned by the short factors do not fit queries turned by the
  /// long ones. So make one embedding for each side of original_length, and give a call the one of
  /// its sequences. Where a step would take a sequence beyond original_length for the first time,
  /// reset its cache and step through all its tokens with the other embedding, as Transformers
  /// does; or begin with the long one, as llama.cpp and vLLM do, whose length is that of the
  /// context. Source: Y. Ding et al., "LongRoPE: extending LLM context window beyond 2 million
  /// tokens" (2024), with the switch and the attention factor of the code of Phi-3.
  ATTN_ALWAYS_INLINE static RotaryScaling longrope(Span<const double> short_factors,
                                                   Span<const double> long_factors, double factor,
                                                   Index original_length, Index length) {
    RotaryScaling scaling = dynamic_ntk(factor, original_length, length);
    scaling.kind = Kind::longrope;
    scaling.short_factors = short_factors;
    scaling.long_factors = long_factors;
    return scaling;
  }
};

}  // namespace attn

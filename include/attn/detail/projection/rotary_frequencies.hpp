// attn/detail/projection/rotary_frequencies.hpp - level 13: the frequencies of a rotary embedding,
// and their rules.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/error.hpp"
#include "attn/layers/rotary_scaling.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

constexpr double kTwoPi = 6.283185307179586476925;

/// The pair, as a fraction, that turns `turns` times within `length` positions.
inline double pair_of_turns(double turns, double length, double base, Index rotary_dim) {
  return static_cast<double>(rotary_dim) * std::log(length / (turns * kTwoPi)) /
         (2 * std::log(base));
}

/// Scales the frequency of pair i; `f` is the plain one.
inline double scaled_frequency(const RotaryScaling& scaling, double f, Index i, double base,
                               Index rotary_dim) {
  const double length = static_cast<double>(scaling.original_length);
  switch (scaling.kind) {
    case RotaryScaling::Kind::linear:
      return f / scaling.factor;
    case RotaryScaling::Kind::yarn: {
      double first = pair_of_turns(scaling.beta_fast, length, base, rotary_dim);
      double last = pair_of_turns(scaling.beta_slow, length, base, rotary_dim);
      if (scaling.whole_pairs) {
        first = std::floor(first);
        last = std::ceil(last);
      }
      first = (std::max)(first, 0.0);
      last = (std::min)(last, static_cast<double>(rotary_dim - 1));
      if (last <= first) last = first + 0.001;  // a step
      const double ramp = (static_cast<double>(i) - first) / (last - first);
      const double slow = (std::min)((std::max)(ramp, 0.0), 1.0);
      return f * (1 - slow) + f / scaling.factor * slow;
    }
    case RotaryScaling::Kind::llama3: {
      const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
      const double turns = length * f / kTwoPi;  // original_length / w
      if (turns > high) return f;
      if (turns < low) return f / scaling.factor;
      const double s = (turns - low) / (high - low);
      return f * (s + (1 - s) / scaling.factor);
    }
    case RotaryScaling::Kind::longrope: {
      const bool is_long = scaling.length > scaling.original_length;
      return f / (is_long ? scaling.long_factors : scaling.short_factors)[i];
    }
    case RotaryScaling::Kind::none:
    case RotaryScaling::Kind::dynamic_ntk:  // changes the base instead
      break;
  }
  return f;
}

/// The frequencies of all pairs, in radians a position.
inline std::vector<double> rotary_frequencies(Index rotary_dim, double base,
                                              const RotaryScaling& scaling) {
  const double dim = static_cast<double>(rotary_dim);
  if (scaling.kind == RotaryScaling::Kind::dynamic_ntk && rotary_dim > 2 &&
      scaling.length > scaling.original_length) {
    const double stretch = scaling.factor * static_cast<double>(scaling.length) /
                               static_cast<double>(scaling.original_length) -
                           scaling.factor + 1;
    base *= std::pow(stretch, dim / (dim - 2));
  }
  std::vector<double> frequencies;
  for (Index i = 0; i < rotary_dim / 2; ++i) {
    const double f = std::pow(base, -2 * static_cast<double>(i) / dim);
    frequencies.push_back(scaled_frequency(scaling, f, i, base, rotary_dim));
  }
  return frequencies;
}

/// What turned elements are multiplied by.
inline double rotary_attention_factor(const RotaryScaling& scaling) {
  const bool is_longrope = scaling.kind == RotaryScaling::Kind::longrope;
  if (!is_longrope && scaling.kind != RotaryScaling::Kind::yarn) return 1;
  if (scaling.attention_factor) return *scaling.attention_factor;
  if (scaling.factor <= 1) return 1;
  const double logarithm = std::log(scaling.factor);
  if (!is_longrope) return 0.1 * logarithm + 1;
  return std::sqrt(1 + logarithm / std::log(static_cast<double>(scaling.original_length)));
}

[[noreturn]] ATTN_COLD inline void raise_rotary_error(const std::string& rule) {
  raise_option_error("RotaryEmbedding: " + rule);
}

/// Checks the factors of longrope, one a pair.
inline void check_pair_factors(const char* name, Span<const double> factors, Index pairs) {
  if (factors.size() != pairs) {
    raise_rotary_error(std::string(name) + " must hold one number a pair, " +
                       std::to_string(pairs) + ", got " + std::to_string(factors.size()));
  }
  for (const double factor : factors) {
    if (is_finite(factor) && factor > 0) continue;
    raise_rotary_error(std::string(name) + " must be finite and more than 0, got " +
                       general(factor));
  }
}

inline void check_rotary(Index head_dim, Index rotary_dim, double base,
                         const RotaryScaling& scaling) {
  const auto expect = [](bool holds, const std::string& rule) {
    if (!holds) raise_rotary_error(rule);
  };
  expect(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim,
         "rotary_dim must be even, more than 0 and at most head_dim, got rotary_dim " +
             std::to_string(rotary_dim) + ", head_dim " + std::to_string(head_dim));
  expect(is_finite(base) && base > 0, "base must be finite and more than 0, got " + general(base));
  using Kind = RotaryScaling::Kind;
  if (scaling.kind == Kind::none) return;
  expect(is_finite(scaling.factor) && scaling.factor > 0,
         "the factor of a scaling must be finite and more than 0, got " + general(scaling.factor));
  if (scaling.kind == Kind::linear) return;
  expect(scaling.original_length > 0, "the original_length of a scaling must be more than 0, got " +
                                          std::to_string(scaling.original_length));
  if (scaling.kind == Kind::dynamic_ntk || scaling.kind == Kind::longrope) {
    expect(scaling.length > 0,
           "the length of a scaling must be more than 0, got " + std::to_string(scaling.length));
  }
  if (scaling.kind == Kind::yarn) {
    expect(base > 1, "yarn needs a base of more than 1, got " + general(base));
    expect(is_finite(scaling.beta_fast) && is_finite(scaling.beta_slow) && scaling.beta_slow > 0 &&
               scaling.beta_fast >= scaling.beta_slow,
           "yarn needs beta_fast >= beta_slow > 0, got " + general(scaling.beta_fast) + " and " +
               general(scaling.beta_slow));
  }
  if (scaling.kind == Kind::yarn || scaling.kind == Kind::longrope) {
    expect(!scaling.attention_factor || is_finite(*scaling.attention_factor),
           "attention_factor must be finite");
  }
  if (scaling.kind == Kind::longrope) {
    check_pair_factors("short_factors", scaling.short_factors, rotary_dim / 2);
    check_pair_factors("long_factors", scaling.long_factors, rotary_dim / 2);
    expect(scaling.attention_factor || scaling.factor <= 1 || scaling.original_length > 1,
           "longrope needs an original_length of more than 1, or an attention_factor");
  }
  if (scaling.kind == Kind::llama3) {
    expect(is_finite(scaling.low_frequency_factor) && is_finite(scaling.high_frequency_factor) &&
               scaling.high_frequency_factor > scaling.low_frequency_factor,
           "llama3 needs high_frequency_factor > low_frequency_factor, got " +
               general(scaling.high_frequency_factor) + " and " +
               general(scaling.low_frequency_factor));
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/projection/rotary_table.hpp - level 13: what a rotary embedding knows of the angles
// of positions.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/projection/rotary_frequencies.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/error.hpp"
#include "attn/layers/rotary_scaling.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

/// What gives each position its angles: frequencies, or tables for the first positions.
///
/// With frequencies, position p = first + r, first a multiple of 64 and |r| < 64, is turned by
/// `first` and by r, whose cosines and sines are tabulated: one sine in 64 tokens, no limit to p,
/// and bits that depend on p alone.
struct RotaryTable {
  static constexpr Index kSteps = 64;

  Index pairs = 0;
  std::vector<double> frequencies;     ///< [pairs]; empty: cosines and sines are given
  std::vector<double> cosines, sines;  ///< [kSteps, pairs], or given: [positions, pairs]
  std::vector<Index>
      sections;  ///< pairs that turn by the same position of a token; their sum: pairs
  double factor = 1;

  ATTN_ALWAYS_INLINE Index num_sections() const { return static_cast<Index>(sections.size()); }
  ATTN_ALWAYS_INLINE bool is_given() const { return frequencies.empty(); }
  ATTN_ALWAYS_INLINE Index given_positions() const {
    return pairs == 0 ? 0 : static_cast<Index>(cosines.size()) / pairs;
  }
  /// The multiple of kSteps next to a position, on the side of 0.
  ATTN_ALWAYS_INLINE static Index first_of(Index position) { return position - position % kSteps; }
};

inline namespace ATTN_BUILD {

/// Refuses sections that are not all pairs.
inline void check_sections(const char* function, Span<const Index> sections, Index pairs) {
  Index left = pairs;
  bool fit = true;
  for (const Index section : sections) {
    fit = fit && section >= 0 && section <= left;
    if (fit) left -= section;
  }
  if (sections.empty() || (fit && left == 0)) return;
  std::string text = std::string(function) + ": sections must be 0 or more, and together the " +
                     std::to_string(pairs) + " pairs; got";
  for (const Index section : sections) text += ' ' + std::to_string(section);
  raise_option_error(text);
}

/// The table of frequencies that have been checked. `sections`: empty for one of all pairs.
inline RotaryTable tabulate_rotary(const char* function, std::vector<double> frequencies,
                                   double factor, Span<const Index> sections) {
  RotaryTable table;
  table.pairs = static_cast<Index>(frequencies.size());
  check_sections(function, sections, table.pairs);
  table.sections.assign(sections.begin(), sections.end());
  if (sections.empty()) table.sections.push_back(table.pairs);
  table.frequencies = std::move(frequencies);
  table.factor = factor;
  for (Index step = 0; step < RotaryTable::kSteps; ++step) {
    for (const double frequency : table.frequencies) {
      table.cosines.push_back(std::cos(static_cast<double>(step) * frequency));
      table.sines.push_back(std::sin(static_cast<double>(step) * frequency));
    }
  }
  return table;
}

inline RotaryTable make_rotary_table(Index head_dim, Index rotary_dim, double base,
                                     const RotaryScaling& scaling, Span<const Index> sections) {
  check_rotary(head_dim, rotary_dim, base, scaling);
  if (!(CheckedSize(rotary_dim) * RotaryTable::kSteps * Index{sizeof(double)}).fits()) {
    raise_rotary_error("too large, the size of its tables overflows; got rotary_dim " +
                       std::to_string(rotary_dim));
  }
  return tabulate_rotary("RotaryEmbedding", rotary_frequencies(rotary_dim, base, scaling),
                         rotary_attention_factor(scaling), sections);
}

/// The table of given frequencies, one a pair.
inline RotaryTable make_rotary_table(Index head_dim, Span<const double> frequencies, double factor,
                                     Span<const Index> sections) {
  const char* const function = "RotaryEmbedding::from_frequencies";
  const auto expect = [&](bool holds, const std::string& rule) {
    if (!holds) raise_option_error(std::string(function) + ": " + rule);
  };
  expect(frequencies.size() > 0 && frequencies.size() <= head_dim / 2,
         "there must be between 1 and head_dim / 2 frequencies, got " +
             std::to_string(frequencies.size()) + ", head_dim " + std::to_string(head_dim));
  for (const double frequency : frequencies) {
    expect(is_finite(frequency), "frequencies must be finite, got " + general(frequency));
  }
  expect(is_finite(factor), "attention_factor must be finite, got " + general(factor));
  return tabulate_rotary(function, {frequencies.begin(), frequencies.end()}, factor, sections);
}

template <class T>
RotaryTable copy_rotary_table(Index head_dim, const Tensor4<T>& cosines, const Tensor4<T>& sines) {
  CallShapes call("RotaryEmbedding::from_tables");
  call.add_input("cosines", TensorRef(cosines));
  call.add_input("sines", TensorRef(sines));
  call.expect(cosines.shape() == sines.shape() && cosines.batch() == 1 && cosines.heads() == 1,
              "cosines and sines must be [1, 1, positions, rotary_dim / 2] both");
  if (cosines.dim() < 1 || 2 * cosines.dim() > head_dim) {
    call.raise_shape("cosines and sines must have between 1 and head_dim / 2 columns, head_dim " +
                     std::to_string(head_dim));
  }
  RotaryTable table;
  table.pairs = cosines.dim();
  table.sections.push_back(table.pairs);
  for (Index p = 0; p < cosines.length(); ++p) {
    for (Index i = 0; i < table.pairs; ++i) {
      table.cosines.push_back(convert_element<double>(cosines(0, 0, p, i)));
      table.sines.push_back(convert_element<double>(sines(0, 0, p, i)));
    }
  }
  return table;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

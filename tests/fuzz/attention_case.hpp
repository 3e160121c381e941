// tests/fuzz/attention_case.hpp - one call of attention drawn from bytes, held to attention by the
// book: sizes, layouts, element types, masks, options, executor and workspace.
//
// The same code serves libFuzzer (attention_fuzz.cpp) and a seeded test (attention_fuzz_test.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/attn.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {

/// Choices drawn from a string of bytes; 0 once it is used up.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  /// A number below `bound`, which is at most 65536.
  Index below(Index bound) {
    const Index value = next() + 256 * (bound > 256 ? next() : 0);
    return value % bound;
  }
  Index from(std::initializer_list<Index> values) {
    return values.begin()[below(static_cast<Index>(values.size()))];
  }
  bool one_in(Index n) { return below(n) == n - 1; }
  /// In [-1, 1).
  double real() { return static_cast<double>(below(65536)) / 32768 - 1; }

 private:
  Index next() { return at_ < size_ ? data_[at_++] : 0; }

  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

inline Sizes draw_sizes(Choices& choices) {
  Sizes s;
  s.batch = choices.from({1, 1, 2, 3, 0});
  s.key_heads = choices.from({1, 1, 2, 3});
  s.value_heads = choices.one_in(4) ? choices.from({1, 2, 3}) : s.key_heads;
  const Index both = s.key_heads % s.value_heads == 0   ? s.key_heads
                     : s.value_heads % s.key_heads == 0 ? s.value_heads
                                                        : s.key_heads * s.value_heads;
  s.query_heads = both * choices.from({1, 1, 2, 4});
  // Around the edges of row tiles and of the form for few rows.
  s.query_length = choices.one_in(2) ? choices.below(6) : choices.below(60);
  // Around the edges of vectors and key tiles.
  s.key_length =
      choices.one_in(3) ? choices.from({0, 1, 127, 128, 129, 255, 257}) : choices.below(70);
  s.key_dim = choices.from({0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64});
  s.value_dim = choices.from({0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 65});
  return s;
}

inline Layout draw_layout(Choices& choices) {
  return kAllLayouts[static_cast<std::size_t>(choices.below(std::size(kAllLayouts)))];
}

/// Draws the masks, options and layouts of a call of these types, and holds it to the reference.
template <class Q, class K, class V, class Out>
void hold_case(Choices& choices, const Sizes& sizes) {
  const Index bottom_right = sizes.key_length - sizes.query_length;
  const Index offset = choices.from({0, bottom_right, bottom_right, 2, -3, 40});
  const MaskData<float> data(sizes, offset);
  const std::vector<Kind> kinds = kinds_of(data, sizes, offset);
  AnyMask mask;
  Formula formula;
  for (Index i = choices.from({0, 1, 1, 2, 3}); i > 0; --i) {
    const Kind& kind =
        kinds[static_cast<std::size_t>(choices.below(static_cast<Index>(kinds.size())))];
    if (kind.is_top_left && offset != 0) continue;
    if (choices.one_in(3) && !mask.modifies() && !kind.mask.modifies()) {
      mask = mask | kind.mask;
      formula = formula | kind.formula;
    } else {
      mask = mask & kind.mask;
      formula = formula & kind.formula;
    }
  }

  AttentionOptions options;
  options.query_offset = offset;
  if (choices.one_in(4)) options.scale = 2 * choices.real();
  if (choices.one_in(4)) options.softcap = 0.5 + static_cast<double>(choices.below(20));
  if (choices.one_in(5)) {
    options.dropout.probability = (choices.real() + 1) / 2;
    options.dropout.seed = static_cast<std::uint64_t>(choices.below(65536));
  }
  std::vector<double> sinks;
  if (choices.one_in(4)) {
    for (Index h = 0; h < sizes.query_heads; ++h) sinks.push_back(4 * choices.real());
    options.sinks = sinks;
  }
  static ThreadPool pool(3);
  if (choices.one_in(3)) options.executor = &pool;

  const Layout q = draw_layout(choices), k = draw_layout(choices), v = draw_layout(choices);
  const Inputs<Q, K, V> in(sizes, static_cast<std::uint64_t>(1 + choices.below(1000)), q, k, v);
  std::vector<std::byte> workspace;
  if (choices.one_in(3)) {
    // What is asked for, for the hungriest instruction set, at no alignment at all.
    std::size_t bytes = 0;
    AttentionOptions of_set = options;
    for (const InstructionSet set : instruction_sets()) {
      of_set.instruction_set = set;
      bytes = (std::max)(
          bytes, attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), mask, of_set));
    }
    workspace.resize(bytes + 1);
    options.workspace = {workspace.data() + 1, bytes};
  }
  expect_attention<Out>(in, mask, formula, options, draw_layout(choices));
}

/// One whole case. Four combinations of element types: each costs seconds to compile.
inline void hold_attention_case(const std::uint8_t* data, std::size_t size) {
  Choices choices(data, size);
  const Sizes sizes = draw_sizes(choices);
  SCOPED_TRACE(sizes);
  switch (choices.below(4)) {
    case 0:
      return hold_case<float, float, float, float>(choices, sizes);
    case 1:
      return hold_case<Eigen::half, Eigen::half, Eigen::half, Eigen::half>(choices, sizes);
    case 2:
      return hold_case<Eigen::bfloat16, Eigen::half, float, Eigen::bfloat16>(choices, sizes);
    default:
      return hold_case<double, float, double, Eigen::half>(choices, sizes);
  }
}

}  // namespace test
}  // namespace attn

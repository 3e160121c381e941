// tests/support/full_call.hpp - a call that uses every stage, for the tests of bits.
#pragma once

#include <vector>

#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {

/// A mask of several parts, and options that touch every stage.
struct FullCall {
  std::vector<double> sinks, slopes;
  std::vector<Index> lengths;
  AttentionOptions options;

  explicit FullCall(const Sizes& sizes, bool with_dropout = true) {
    for (Index h = 0; h < sizes.query_heads; ++h) {
      // The same in every group, so that a part of the heads is the same call.
      sinks.push_back(0.5);
      slopes.push_back(0.01);
    }
    for (Index b = 0; b < sizes.batch; ++b) lengths.push_back(sizes.key_length - 2);
    options.sinks = sinks;
    options.softcap = 4;
    if (with_dropout) options.dropout = {0.2, 3, 4};
    options.query_offset = sizes.key_length - sizes.query_length;
  }
  FullCall(const FullCall&) = delete;
  AnyMask mask() const { return causal() & alibi(slopes) & key_lengths(lengths); }
};

}  // namespace test
}  // namespace attn

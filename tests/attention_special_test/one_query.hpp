// tests/attention_special_test/one_query.hpp - a query given by its scores and values.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"

namespace attn {
namespace test {

/// One query, its rows all equal: the call as decode does it (1 row) and as prefill does (20).
struct OneQuery {
  std::vector<double> key, value;  // key dim 1, scale 1, q = 1: the key is the score
  AttentionOptions options;

  template <class T, class M = NoMask>
  Results<T> run(Index rows, const M& mask = M()) const {
    const Index keys = static_cast<Index>(key.size());
    Inputs<T> in(Sizes{1, 1, 1, 1, rows, keys, 1, 1});
    in.q.fill_value(to<T>(1));
    in.k.fill(
        [&](Index, Index, Index j, Index) { return to<T>(key[static_cast<std::size_t>(j)]); });
    in.v.fill(
        [&](Index, Index, Index j, Index) { return to<T>(value[static_cast<std::size_t>(j)]); });
    AttentionOptions with_scale = options;
    if (!with_scale.scale) with_scale.scale = 1;
    return test::run(in, mask, with_scale);
  }
};

/// Calls check(results, last_row) for both forms and all instruction sets.
template <class T, class M, class F>
void for_each_form(OneQuery query, const M& mask, const F& check) {
  for (const InstructionSet set : instruction_sets()) {
    for (const Index rows : {1, 20}) {
      SCOPED_TRACE(std::string(attn::name_of(set)) + ", rows " + std::to_string(rows));
      query.options.instruction_set = set;
      const auto results = query.run<T>(rows, mask);
      check(results, rows - 1);
    }
  }
}

}  // namespace test
}  // namespace attn

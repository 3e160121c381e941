// What wrong options and masks get: the text of each error, word for word, and outputs that were
// not touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention_errors_test/call.hpp"
#include "attn/attention.hpp"
#include "support/error_cases.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using test::message_of;

const double kInfinity = test::infinity<double>(), kNaN = test::quiet_nan<double>();

TEST(OptionErrors, OfNumbersOutOfRange) {
  const std::string scale = "options.scale must be finite in the accumulation type, got ";
  const std::string softcap =
      "options.softcap must be finite in the accumulation type and 0 (none) or more, got ";
  const std::string dropout = "options.dropout.probability must lie within 0 and 1, got ";
  test::expect_errors<OptionError, Call>({
      {[](Call& c) { c.options.scale = kNaN; }, scale + "nan"},
      {[](Call& c) { c.options.scale = -kInfinity; }, scale + "-inf"},
      {[](Call& c) { c.options.scale = 1e39; }, scale + "1e+39"},
      {[](Call& c) { c.options.softcap = -1; }, softcap + "-1"},
      {[](Call& c) { c.options.softcap = kInfinity; }, softcap + "inf"},
      {[](Call& c) { c.options.softcap = kNaN; }, softcap + "nan"},
      {[](Call& c) { c.options.dropout.probability = -0.1; }, dropout + "-0.1"},
      {[](Call& c) { c.options.dropout.probability = 1.1; }, dropout + "1.1"},
      {[](Call& c) { c.options.dropout.probability = kInfinity; }, dropout + "inf"},
      {[](Call& c) { c.options.dropout.probability = kNaN; }, dropout + "nan"},
      {[](Call& c) { c.options.instruction_set = InstructionSet::neon; },
       std::string("options.instruction_set neon is not offered by this CPU; its best is ") +
           name_of(active_instruction_set())},
  });
}

TEST(OptionErrors, OfSinks) {
  static const std::vector<double> five(5), six_inf(6, kInfinity), six_nan(6, kNaN),
      six_wide(6, 1e39);
  const std::string sinks = "options.sinks must be finite in the accumulation type, got ";
  test::expect_errors<ShapeError, Call>({
      {[](Call& c) { c.options.sinks = five; },
       "options.sinks must hold one number a query head, 6, got 5"},
  });
  test::expect_errors<OptionError, Call>({
      {[](Call& c) { c.options.sinks = six_inf; }, sinks + "inf"},
      {[](Call& c) { c.options.sinks = six_nan; }, sinks + "nan"},
      {[](Call& c) { c.options.sinks = six_wide; }, sinks + "1e+39"},
  });
  // In a double call it is finite.
  AttentionOptions options;
  options.sinks = six_wide;
  Tensor4Buffer<double> q({1, 6, 2, 2}), k({1, 1, 2, 2}), out({1, 6, 2, 2});
  EXPECT_NO_THROW(scaled_dot_product_attention(q, k, k, out, no_mask(), options));
  EXPECT_NO_THROW(attention_workspace_bytes(q, k, k, no_mask(), options));
}

TEST(OptionErrors, OfTheAccumulationType) {
  // Finite as a double but not as a float: neither may turn into infinity without a word.
  test::expect_errors<OptionError, Call>({
      {[](Call& c) { c.options.scale = -1e39; },
       "options.scale must be finite in the accumulation type, got -1e+39"},
      {[](Call& c) { c.options.softcap = 1e39; },
       "options.softcap must be finite in the accumulation type and 0 (none) or more, got 1e+39"},
  });
  AttentionOptions wide_scale, wide_softcap;
  wide_scale.scale = -1e39;
  wide_softcap.softcap = 1e39;
  Tensor4Buffer<double> q({1, 6, 2, 2}), out({1, 6, 2, 2});
  for (const AttentionOptions& options : {wide_scale, wide_softcap}) {
    EXPECT_NO_THROW(scaled_dot_product_attention(q, q, q, out, no_mask(), options));
    EXPECT_NO_THROW(attention_workspace_bytes(q, q, q, no_mask(), options));
  }
}

TEST(OptionErrors, OfPositions) {
  static const std::vector<Index> three = {1, 2, 3};
  test::expect_errors<ShapeError, Call>({
      {[](Call& c) { c.options.query_offset = three; },
       "options.query_offset must hold one number, or one each batch of q, 2, got 3"},
      {[](Call& c) { c.mask = causal(); },
       "causal() needs as many queries as keys, or a position: use causal_top_left() (offset 0), "
       "causal_bottom_right() (offset Sk - Sq), causal_from(offset) or options.query_offset"},
      {[](Call& c) { c.mask = causal_bottom_right() & key_lengths(3); },
       "causal_bottom_right() with key_lengths and a query length that is not the key length: say "
       "where the queries stand, as causal_from(offset) or options.query_offset (length - Sq: at "
       "the end of the valid keys)"},
  });
  test::expect_errors<OptionError, Call>({
      {[](Call& c) {
         c.options.query_offset = 1;
         c.mask = causal_top_left();
       },
       "causal_top_left() and options.query_offset give different positions to the queries"},
      {[](Call& c) { c.mask = key_lengths(8); },
       "key_lengths must lie within 0 and the number of keys 7, got 8 for batch 0"},
  });
}

TEST(OptionErrors, OfMaskShapes) {
  Call call;
  bool flag[1] = {true};
  call.mask = keep_where(Tensor4<bool>(flag, {1, 1, 7, 4}));
  EXPECT_EQ(call.error<ShapeError>(),
            Call::kFunction +
                std::string("the keep_where mask must have the shape of the scores, or 1, on every "
                            "axis: scores [2, 6, 4, 7]; got ") +
                call.shapes() + ", keep_where mask [1, 1, 7, 4]");
}

TEST(OptionErrors, OfTheWorkspace) {
  Tensor4Buffer<float> q({1, 2, 40, 8}), out({1, 2, 40, 8});
  std::fill_n(out.data(), out.size(), 7.0f);
  const std::size_t bytes = attention_workspace_bytes(q, q, q);
  std::vector<char> memory(bytes);
  AttentionOptions options;
  options.workspace = {memory.data(), 100};
  const std::string text = message_of<OptionError>(
      [&] { scaled_dot_product_attention(q, q, q, out, no_mask(), options); });
  EXPECT_EQ(text.rfind("scaled_dot_product_attention: options.workspace is too small: "
                       "attention_workspace_bytes asks for ",
                       0),
            0u)
      << text;
  EXPECT_NE(text.find(" bytes, got 100; got q [1, 2, 40, 8]"), std::string::npos) << text;
  for (Index i = 0; i < out.size(); ++i) EXPECT_EQ(out.data()[i], 7);
}

}  // namespace
}  // namespace attn

// ONNX's own node tests of attention, run through the public API by onnx_adapter.hpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/case_file.hpp"
#include "conformance/error_bound.hpp"
#include "conformance/onnx_adapter.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

constexpr std::size_t kNumCases = 126;  // onnx 1.23.2: 93 + 11 + 8 + 14

std::string case_folder() {
  const char* const chosen = std::getenv("ATTN_ONNX_CASES");
  return chosen != nullptr ? chosen : ATTN_ONNX_CASES;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = read_cases(case_folder());
  return cases;
}

/// The cases that are not run, each with its reason.
const std::map<std::string, std::string>& cases_left_out() {
  static const std::map<std::string, std::string> reasons = [] {
    std::map<std::string, std::string> result;
    result["test_flexattention_prob_mod"] =
        "a function of the probabilities is not offered: partial results could not be merged";
    for (const char* name : {"linear", "gated", "gated_per_head_decay", "delta", "gated_delta",
                             "gated_delta_beta_scalar", "gated_delta_gqa", "gated_delta_mqa",
                             "decode_step", "prefill_with_past", "no_past_explicit_zeros",
                             "explicit_scale", "fp16", "linear_t1_no_past"}) {
      result[std::string("test_linear_attention_") + name] =
          "linear attention is another function than the library's exact softmax attention";
    }
    return result;
  }();
  return reasons;
}

std::vector<Case> cases_to_run() {
  std::vector<Case> result;
  for (const Case& c : all_cases()) {
    if (cases_left_out().count(c.name) == 0) result.push_back(c);
  }
  return result;
}

/// The elements of a case's tensors, for as long as views of them are used.
template <class T>
class Elements {
 public:
  explicit Elements(const Case& c) : case_(c) {}
  /// A null view if the case does not have the tensor.
  Tensor4<const T> view(const std::string& name, Index num_heads) {
    if (!case_.has(name)) return {};
    const CaseTensor& tensor = case_.tensors.at(name);
    held_[name] = tensor.as<T>();
    const std::vector<T>& elements = held_[name];
    return view_of(elements.data(), tensor.shape, num_heads);
  }

 private:
  const Case& case_;
  std::map<std::string, std::vector<T>> held_;
};

/// Holds an output to the one that ONNX ships, and to ONNX's reference in double. Both sides err:
/// ours in `ours` (the rounding error of what it computes in), ONNX's in T or in double.
/// `bound(u)`: by how much.
template <class T, class A, class Bound>
void compare(const Case& c, const std::string& name, Tensor4<A> actual, Index num_heads,
             long double ours, const Bound& bound) {
  Elements<T> shipped(c);
  Elements<double> exact(c);
  expect_within(name.c_str(), actual, shipped.view(name, num_heads),
                bound(ours) + bound(rounding_error<T>()));
  if (c.has("exact_" + name)) {
    expect_within(("exact_" + name).c_str(), actual, exact.view("exact_" + name, num_heads),
                  bound(ours) + bound(rounding_error<double>()));
  }
}

template <class T>
void run_attention(const Case& c) {
  const auto size = [&](const char* key) { return static_cast<Index>(c.number(key, 0)); };
  const Index q_heads = size("q_num_heads"), kv_heads = size("kv_num_heads");
  Elements<T> elements(c);
  OnnxAttention<T> call;
  call.q = elements.view("Q", q_heads);
  call.k = elements.view("K", kv_heads);
  call.v = elements.view("V", kv_heads);
  call.past_key = elements.view("past_key", 0);
  call.past_value = elements.view("past_value", 0);
  if (c.has("attn_mask")) {
    const CaseTensor& mask = c.tensors.at("attn_mask");
    call.mask.shape = mask.shape;
    if (mask.type == "bool") {
      call.mask.keep = mask.as<std::uint8_t>();
    } else {
      call.mask.bias = mask.as<T>();
    }
  }
  if (c.has("nonpad_kv_seqlen")) {
    call.nonpad_kv_seqlen = c.tensors.at("nonpad_kv_seqlen").as<std::int64_t>();
  }
  call.is_causal = size("is_causal") != 0;
  call.left_window_size = static_cast<Index>(c.number("left_window_size", -1));
  call.right_window_size = static_cast<Index>(c.number("right_window_size", -1));
  if (c.numbers.count("scale") != 0) call.scale = c.number("scale", 0);
  call.softcap = c.number("softcap", 0);
  call.scores = static_cast<OnnxScores>(size("qk_matmul_output_mode"));
  const OnnxResult<T> result = onnx_attention(call);

  long double max_bias = 0;
  for (const T bias : call.mask.bias) {
    if (std::isfinite(widen(bias))) max_bias = (std::max)(max_bias, std::abs(widen(bias)));
  }
  const long double default_scale = 1 / std::sqrt(widen(call.q.dim()));
  const long double scale = call.scale ? widen(*call.scale) : default_scale;
  const ErrorBound bound =
      error_bound(call.q, result.present_key.view(), result.present_value.view(), scale, max_bias);
  const long double ours = rounding_error<AccumulationType<T>>();

  compare<T>(c, "Y", result.y.view(), q_heads, ours,
             [&](long double u) { return bound.output(u); });
  if (c.has("present_key")) {
    EXPECT_TRUE(same_bits(result.present_key.view(), elements.view("present_key", 0)));
    EXPECT_TRUE(same_bits(result.present_value.view(), elements.view("present_value", 0)));
  }
  if (c.has("qk_matmul_output")) {
    const bool is_weight = call.scores == OnnxScores::after_softmax;
    compare<T>(c, "qk_matmul_output", result.scores.view(), 0, ours,
               [&](long double u) { return is_weight ? bound.weight(u) : bound.score(u); });
  }
}

/// FlexAttention's score_mod by the name of its graph; the axes count from 0 for query and key.
AnyMask score_modifier(const Case& c) {
  const std::string graph = c.word("score_mod");
  if (graph.empty()) return no_mask();
  if (graph == "score_mod_bias") {
    return modify_score([bias = c.number("score_mod.bias", 0)](auto score, ScorePosition) {
      return score + static_cast<decltype(score)>(bias);
    });
  }
  if (graph == "score_mod_causal_mask") {
    return modify_score([](auto score, ScorePosition at) {
      return at.query >= at.key ? score : -infinity<decltype(score)>();
    });
  }
  if (graph == "score_mod_soft_cap") {
    return modify_score([cap = c.number("score_mod.cap", 0)](auto score, ScorePosition) {
      const auto limit = static_cast<decltype(score)>(cap);
      return std::tanh(score / limit) * limit;
    });
  }
  if (graph == "score_mod_relative_positional") {
    return modify_score([](auto score, ScorePosition at) {
      return score + static_cast<decltype(score)>(at.query - at.key);
    });
  }
  throw std::runtime_error("FlexAttention: the test does not know the graph " + graph);
}

template <class T>
void run_flex_attention(const Case& c) {
  Elements<T> elements(c);
  const Tensor4<const T> q = elements.view("Q", 0), k = elements.view("K", 0),
                         v = elements.view("V", 0);
  AttentionOptions options;
  if (c.numbers.count("scale") != 0) options.scale = c.number("scale", 0);
  const auto result = scaled_dot_product_attention(q, k, v, score_modifier(c), options);

  const long double default_scale = 1 / std::sqrt(widen(q.dim()));
  const long double scale = options.scale ? widen(*options.scale) : default_scale;
  // The largest change of a score by the modifiers: the bias, or a distance.
  const long double change =
      (std::max)({widen(c.number("score_mod.bias", 0)), widen(q.length()), widen(k.length())});
  const ErrorBound bound = error_bound(q, k, v, scale, change);
  // FlexAttention holds its scale in float.
  const long double ours =
      (std::max)(rounding_error<AccumulationType<T>>(), rounding_error<float>());
  compare<T>(c, "Y", result.output.view(), 0, ours, [&](long double u) { return bound.output(u); });
}

template <class T>
void run_rotary_embedding(const Case& c) {
  const CaseTensor& input = c.tensors.at("input");
  std::vector<T> elements = input.as<T>();
  const std::vector<T> cosines = c.tensors.at("cos_cache").as<T>(),
                       sines = c.tensors.at("sin_cache").as<T>();
  const auto table = [&](const std::vector<T>& values) {
    const Shape4 shape = right_aligned(c.tensors.at("cos_cache").shape);
    return bsd<const T>(values.data(), shape.heads, shape.length, shape.dim);
  };
  const Index num_heads = static_cast<Index>(c.number("num_heads", 0));
  OnnxRotary<T> call;
  call.x = view_of(elements.data(), input.shape, num_heads);
  call.cos_cache = table(cosines);
  call.sin_cache = table(sines);
  call.is_interleaved = c.number("interleaved", 0) != 0;
  if (c.has("position_ids")) {
    call.position_ids = c.tensors.at("position_ids").as<std::int64_t>();
  }
  // Two products and a sum by ONNX, one rounding by us.
  Elements<T> shipped(c);
  const long double bound = 3 * rounding_error<T>() * largest_magnitude(call.x) *
                            (largest_magnitude(call.cos_cache) + largest_magnitude(call.sin_cache));
  onnx_rotary_embedding(call);
  expect_within("output", call.x, shipped.view("output", num_heads), bound);
}

template <class T>
void run(const Case& c) {
  if (c.operator_name == "Attention") {
    run_attention<T>(c);
  } else if (c.operator_name == "FlexAttention") {
    run_flex_attention<T>(c);
  } else if (c.operator_name == "RotaryEmbedding") {
    run_rotary_embedding<T>(c);
  } else {
    FAIL() << "the case is neither run nor left out: operator " << c.operator_name;
  }
}

class OnnxCase : public ::testing::TestWithParam<Case> {};

TEST_P(OnnxCase, GivesOnnxsOutputs) {
  const Case& c = GetParam();
  const std::string type = c.has("Q") ? c.tensors.at("Q").type : "";
  if (type == "float64") return run<double>(c);
  if (type == "float16") return run<Eigen::half>(c);
  if (type == "bfloat16") return run<Eigen::bfloat16>(c);
  run<float>(c);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OnnxCase);
INSTANTIATE_TEST_SUITE_P(Onnx1_23_2, OnnxCase, ::testing::ValuesIn(cases_to_run()), CaseTestName());

TEST(OnnxCases, EachIsRunOrLeftOutByName) {
  if (all_cases().empty()) {
    GTEST_SKIP() << "no cases in " << case_folder()
                 << "; to make them: pip install -r tests/conformance/requirements.txt && python3 "
                    "tests/conformance/generate_onnx_cases.py "
                 << case_folder();
  }
  EXPECT_EQ(all_cases().size(), kNumCases);
  EXPECT_EQ(cases_to_run().size() + cases_left_out().size(), kNumCases);
  for (const auto& [name, reason] : cases_left_out()) {
    std::cout << "left out: " << name << ": " << reason << '\n';
  }
}

// What ONNX's cases cannot tell apart. q = 0 and v(j) = 2^j: an output times the number of keys in
// it names the keys.

struct HandMade {
  OnnxAttention<float> call;
  std::vector<float> q, k, v;

  HandMade(Index batch, Index heads, Index queries, Index keys) {
    q.assign(static_cast<std::size_t>(batch * heads * queries), 0);
    k.assign(static_cast<std::size_t>(batch * heads * keys), 0);
    v.resize(k.size());
    for (std::size_t at = 0; at < v.size(); ++at) {
      v[at] = static_cast<float>(1 << (at % static_cast<std::size_t>(keys)));
    }
    call.q = bhsd<const float>(q.data(), {batch, heads, queries, 1});
    call.k = bhsd<const float>(k.data(), {batch, heads, keys, 1});
    call.v = bhsd<const float>(v.data(), {batch, heads, keys, 1});
  }
};

// The vectors' rank-3 masks would pass as (batch, Sq, Sk) too.
TEST(OnnxMaskRule, RankThreeIsHeadsQueriesKeys) {
  HandMade made(2, 2, 1, 2);
  made.call.mask.shape = {2, 1, 2};
  made.call.mask.keep = {1, 0, 0, 1};  // head 0 sees key 0, head 1 sees key 1
  const OnnxResult<float> result = onnx_attention(made.call);
  for (Index b = 0; b < 2; ++b) {
    EXPECT_EQ(result.y(b, 0, 0, 0), 1.0f) << "batch " << b;
    EXPECT_EQ(result.y(b, 1, 0, 0), 2.0f) << "batch " << b;
  }
}

TEST(OnnxMaskRule, RankThreeOfOneHeadServesAllHeads) {
  HandMade made(2, 3, 2, 2);
  made.call.mask.shape = {1, 2, 2};
  made.call.mask.bias = {0, -infinity<float>(), -infinity<float>(), 0};
  const OnnxResult<float> result = onnx_attention(made.call);
  for_each_index(result.y.shape(), [&](Index b, Index h, Index i, Index) {
    EXPECT_EQ(result.y(b, h, i, 0), i == 0 ? 1.0f : 2.0f);
  });
}

// In the vectors every key beyond a short mask is beyond nonpad_kv_seqlen too.
TEST(OnnxMaskRule, ShortMaskBlocksTheKeysThatItLacks) {
  for (const bool is_boolean : {true, false}) {
    HandMade made(1, 1, 2, 4);
    made.call.mask.shape = {2, 2};
    if (is_boolean) {
      made.call.mask.keep = {1, 1, 0, 1};
    } else {
      made.call.mask.bias = {0, 0, -infinity<float>(), 0};
    }
    const OnnxResult<float> result = onnx_attention(made.call);
    EXPECT_EQ(result.y(0, 0, 0, 0), 1.5f);  // keys 0 and 1, not 2 and 3
    EXPECT_EQ(result.y(0, 0, 1, 0), 2.0f);  // key 1
  }
}

// The last axis is filled up, never broadcast.
TEST(OnnxMaskRule, MaskOfOneKeyLeavesOneKey) {
  HandMade made(1, 1, 1, 3);
  made.call.mask.shape = {1};
  made.call.mask.keep = {1};
  EXPECT_EQ(onnx_attention(made.call).y(0, 0, 0, 0), 1.0f);
}

// With fewer new keys than queries, offset is not Sk - Sq.
TEST(OnnxPositionRule, OffsetIsTheLengthOfThePast) {
  HandMade made(1, 1, 3, 2);
  const std::vector<float> past(2, 0.0f), past_values = {16, 32};
  made.call.past_key = bhsd(past.data(), {1, 1, 2, 1});
  made.call.past_value = bhsd(past_values.data(), {1, 1, 2, 1});
  made.call.is_causal = true;
  const OnnxResult<float> result = onnx_attention(made.call);
  EXPECT_NEAR(result.y(0, 0, 0, 0), (16 + 32 + 1) / 3.0, 2e-6);  // both of the past, new key 0
  EXPECT_EQ(result.y(0, 0, 1, 0), (16 + 32 + 1 + 2) / 4.0f);
  EXPECT_EQ(result.y(0, 0, 2, 0), (16 + 32 + 1 + 2) / 4.0f);
}

}  // namespace
}  // namespace test
}  // namespace attn

// PyTorch's attention functions as a second oracle: the committed outputs of PyTorch 2.9.1, made by
// generate_torch_cases.py. nn.MultiheadAttention is in torch_multi_head_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/case_file.hpp"
#include "conformance/error_bound.hpp"
#include "conformance/torch_adapter.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

std::vector<Case> cases_of(const std::string& operator_name) {
  std::vector<Case> result;
  for (const Case& c : read_cases(ATTN_TORCH_CASES)) {
    if (c.operator_name == operator_name) result.push_back(c);
  }
  return result;
}

/// The inputs of a case in the type T, which holds them exactly.
template <class T>
struct CaseInputs {
  explicit CaseInputs(const Case& c)
      : q_elements(c.tensors.at("q").as<T>()),
        k_elements(c.tensors.at("k").as<T>()),
        v_elements(c.tensors.at("v").as<T>()),
        q(view_of<const T>(q_elements.data(), c.tensors.at("q").shape, 0)),
        k(view_of<const T>(k_elements.data(), c.tensors.at("k").shape, 0)),
        v(view_of<const T>(v_elements.data(), c.tensors.at("v").shape, 0)) {}

  std::vector<T> q_elements, k_elements, v_elements;
  Tensor4<const T> q, k, v;
};

/// Holds a result in T to PyTorch's in double and to PyTorch's in T. Both sides err: ours in its
/// accumulation type, PyTorch's in the type it computes in. `bound(u)`: by how much.
template <class T, class A, class Bound>
void compare(const Case& c, const std::string& name, Tensor4<A> actual, const Bound& bound) {
  const long double ours = bound(rounding_error<AccumulationType<T>>());
  const auto against = [&](const std::string& stored, long double torchs) {
    const CaseTensor& expected = c.tensors.at(stored);
    expect_within(stored.c_str(), actual,
                  Tensor4<const double>(expected.values.data(), actual.shape()), ours + torchs);
  };
  against(name + "_float64", bound(rounding_error<double>()));
  const char* const own = std::is_same_v<T, float>         ? "_float32"
                          : std::is_same_v<T, Eigen::half> ? "_float16"
                          : std::is_same_v<T, double>      ? "_float64"
                                                           : "_bfloat16";
  against(name + own, bound(rounding_error<T>()));
}

long double scale_of(const AttentionOptions& options, Index dim) {
  return options.scale ? widen(*options.scale) : 1 / std::sqrt(widen(dim));
}

template <class T>
void run_sdpa(const Case& c) {
  const CaseInputs<T> in(c);
  TorchMask<T> mask;
  add_sdpa_mask(c, mask);
  AttentionOptions options;
  if (c.numbers.count("scale") != 0) options.scale = c.number("scale", 0);
  const auto result = scaled_dot_product_attention(in.q, in.k, in.v, mask.mask, options);

  const ErrorBound bound =
      error_bound(in.q, in.k, in.v, scale_of(options, in.q.dim()), widen(mask.max_bias));
  compare<T>(c, "out", result.output.view(), [&](long double u) { return bound.output(u); });
}

template <class T>
void run_flex(const Case& c) {
  const CaseInputs<T> in(c);
  std::vector<double> slopes;
  for (Index h = 0; h < in.q.heads(); ++h)
    slopes.push_back(std::exp2(-1.0 - static_cast<double>(h)));
  AttentionOptions options;
  const AnyMask mask = flex_modifier(c, in.q.length(), slopes, options);
  const auto result =
      scaled_dot_product_attention(in.q, in.k, in.v, mask, options, Want::log_sum_exp);

  // The largest change of a score: a slope of 1/2, or 1/16 a head, times the largest distance.
  const long double change = widen(in.k.length()) / 2;
  const ErrorBound bound = error_bound(in.q, in.k, in.v, scale_of(options, in.q.dim()), change);
  compare<T>(c, "out", result.output.view(), [&](long double u) { return bound.output(u); });
  compare<T>(c, "lse", result.log_sum_exp.view(),
             [&](long double u) { return bound.log_sum_exp(u); });
}

class TorchSdpa : public ::testing::TestWithParam<Case> {};
class TorchFlex : public ::testing::TestWithParam<Case> {};

TEST_P(TorchSdpa, GivesTorchsOutputs) {
  const Case& c = GetParam();
  run_sdpa<double>(c);
  run_sdpa<float>(c);
  if (c.has("out_float16")) run_sdpa<Eigen::half>(c);
  if (c.has("out_bfloat16")) run_sdpa<Eigen::bfloat16>(c);
}

TEST_P(TorchFlex, GivesTorchsOutputs) {
  run_flex<double>(GetParam());
  run_flex<float>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Torch2_9_1, TorchSdpa,
                         ::testing::ValuesIn(cases_of("scaled_dot_product_attention")),
                         CaseTestName());
INSTANTIATE_TEST_SUITE_P(Torch2_9_1, TorchFlex, ::testing::ValuesIn(cases_of("flex_attention")),
                         CaseTestName());

TEST(TorchCases, AreAllThere) {
  EXPECT_EQ(cases_of("scaled_dot_product_attention").size(), 50u);
  EXPECT_EQ(cases_of("flex_attention").size(), 45u);
}

}  // namespace
}  // namespace test
}  // namespace attn

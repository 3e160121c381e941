// nn.MultiheadAttention of PyTorch 2.9.1 against MultiHeadAttention: the committed outputs and
// per-head weights that generate_torch_cases.py made.
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

std::vector<Case> multi_head_cases() {
  std::vector<Case> result;
  for (const Case& c : read_cases(ATTN_TORCH_CASES)) {
    if (c.operator_name == "MultiheadAttention") result.push_back(c);
  }
  return result;
}

/// One of the four projections of a case in the type T, which holds its numbers exactly.
template <class T>
struct Projection {
  std::vector<T> weight, bias;
  Shape4 shape;

  Projection(const Case& c, const std::string& part) {
    const CaseTensor& given = c.tensors.at(part + "_weight");
    weight = given.as<T>();
    shape = right_aligned(given.shape);
    if (c.has(part + "_bias")) bias = c.tensors.at(part + "_bias").as<T>();
  }
  LinearWeights<T> view() const {
    return {bhsd<const T>(weight.data(), shape), bias.empty() ? nullptr : bias.data()};
  }
};

/// The largest sum over a row of |weight|, and the largest |bias|: by how much a projection can
/// magnify.
template <class T>
long double gain(const Projection<T>& p) {
  long double largest = 0;
  const std::size_t columns = static_cast<std::size_t>(p.shape.dim);
  for (std::size_t row = 0; row < p.weight.size(); row += columns) {
    long double sum = 0;
    for (std::size_t i = 0; i < columns; ++i) sum += std::abs(widen(p.weight[row + i]));
    largest = (std::max)(largest, sum);
  }
  long double bias = 0;
  for (const T b : p.bias) bias = (std::max)(bias, std::abs(widen(b)));
  return largest + bias;
}

template <class T>
void run(const Case& c) {
  const Projection<T> query(c, "query"), key(c, "key"), value(c, "value"), output(c, "output");
  const auto input = [&](const char* name) { return c.tensors.at(name).as<T>(); };
  const std::vector<T> x = input("query"), y = input("key"), z = input("value");
  const auto tokens = [&](const char* name, const std::vector<T>& elements) {
    const std::vector<Index>& shape = c.tensors.at(name).shape;
    return bsd<const T>(elements.data(), shape[0], shape[1], shape[2]);
  };
  const Tensor4<const T> queries = tokens("query", x), keys = tokens("key", y),
                         values = tokens("value", z);

  AttentionConfig config;
  config.model_dim = queries.dim();
  config.num_heads = static_cast<Index>(c.number("num_heads", 0));
  config.key_input_dim = keys.dim();
  config.value_input_dim = values.dim();
  const MultiHeadAttention<T> layer(config, query.view(), key.view(), value.view(), output.view());

  TorchMask<T> mask;
  TorchMask<T> padding;
  add_multi_head_mask(c, queries.batch(), mask);
  add_key_padding_mask(c, padding);
  Tensor4Buffer<T> out(queries.shape());
  Tensor4Buffer<T> weights({queries.batch(), config.num_heads, queries.length(), keys.length()});
  AttentionOutputs<T> extra;
  extra.weights = weights.view();
  layer.forward(queries, keys, values, out.view(), AnyMask(mask.mask & padding.mask), {}, extra);

  // Inputs are below 2. Each of the sums of a projection errs by (its terms + 1) u of the sum of
  // its magnitudes, at most 2 * gain; a score by as much in q and in k, and by its own sum.
  const long double u = rounding_error<T>();
  const long double in = widen((std::max)({queries.dim(), keys.dim(), values.dim()})) + 2;
  const long double head_dim = widen(queries.dim() / config.num_heads);
  const long double q = 2 * gain(query), k = 2 * gain(key), v = 2 * gain(value);
  const long double scores = std::sqrt(head_dim) * q * k + widen(mask.max_bias);
  const long double score_error = u * scores * (2 * in + head_dim + 4);
  const long double weight_error =
      2 * (score_error + (8 + 4 * scores) * u) + u * (widen(keys.length()) + 1);
  const long double head_error = v * (weight_error + u * (in + widen(keys.length()) + 1));
  const long double out_error = gain(output) * (head_error + u * (v + 1) * in);
  // PyTorch's double results err too; no more than ours do.
  const long double both = 2;

  const CaseTensor& torch_out = c.tensors.at("out_float64");
  const CaseTensor& torch_weights = c.tensors.at("weights_float64");
  Tensor4Buffer<double> expected(out.shape());
  for_each_index(out.shape(), [&](Index b, Index h, Index i, Index d) {
    const std::size_t at = static_cast<std::size_t>(linear_index(out.shape(), b, h, i, d));
    const std::size_t column = static_cast<std::size_t>(d);
    expected(b, h, i, d) =
        without_nan(torch_out.values[at],
                    output.bias.empty() ? 0 : static_cast<double>(widen(output.bias[column])));
  });
  expect_within("out", out.view(), expected.view(), both * out_error);
  Tensor4Buffer<double> expected_weights(weights.shape());
  for_each_index(weights.shape(), [&](Index b, Index h, Index i, Index j) {
    const std::size_t at = static_cast<std::size_t>(linear_index(weights.shape(), b, h, i, j));
    expected_weights(b, h, i, j) = without_nan(torch_weights.values[at], 0);
  });
  expect_within("weights", weights.view(), expected_weights.view(), both * weight_error);
}

class TorchMultiHead : public ::testing::TestWithParam<Case> {};

TEST_P(TorchMultiHead, GivesTorchsOutputsAndWeights) {
  run<double>(GetParam());
  run<float>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Torch2_9_1, TorchMultiHead, ::testing::ValuesIn(multi_head_cases()),
                         CaseTestName());

TEST(TorchCases, MultiHeadIsThere) { EXPECT_EQ(multi_head_cases().size(), 21u); }

}  // namespace
}  // namespace test
}  // namespace attn

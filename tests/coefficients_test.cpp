// Biases, gamma and beta know how many they are, unless they are a bare pointer.
#include "attn/layers/coefficients.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/layers/attention_block.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

TEST(Coefficients, ComeFromAnyArrayOfTheCallers) {
  float array[3] = {1, 2, 3};
  const float fixed[2] = {4, 5};
  std::array<float, 4> standard = {};
  const std::vector<float> vector(5);
  const auto expect_counted = [](const Coefficients<float>& numbers, const float* data,
                                 Index size) {
    EXPECT_EQ(numbers.data(), data);
    EXPECT_TRUE(numbers.is_counted());
    EXPECT_EQ(numbers.size(), size);
  };
  expect_counted(array, array, 3);
  expect_counted(fixed, fixed, 2);
  expect_counted(standard, standard.data(), 4);
  expect_counted(vector, vector.data(), 5);
  expect_counted(Span<float>(array, 2), array, 2);
  expect_counted(Span<const float>(array + 1, 2), array + 1, 2);
  expect_counted(Coefficients<float>(vector), vector.data(), 5);
  expect_counted(std::vector<float>().empty() ? Span<const float>() : Span<const float>(vector),
                 nullptr, 0);
}

TEST(Coefficients, OfABarePointerAreNotCounted) {
  float numbers[3] = {1, 2, 3};
  float* const pointer = numbers;
  const float* const constant = numbers;
  EXPECT_EQ(Coefficients<float>(pointer).data(), numbers);
  EXPECT_FALSE(Coefficients<float>(pointer).is_counted());
  EXPECT_FALSE(Coefficients<float>(constant).is_counted());
  EXPECT_EQ(Coefficients<float>(nullptr).data(), nullptr);
  EXPECT_EQ(Coefficients<float>().data(), nullptr);
  // What members that were pointers allow.
  const LinearWeights<float> weights{Tensor4<const float>(),
                                     constant != nullptr ? pointer + 1 : nullptr};
  EXPECT_TRUE(weights.bias != nullptr);
  EXPECT_EQ(weights.bias[1], 3);
  EXPECT_EQ(*(weights.bias + 1), 3);
  const float* const bias = weights.bias;
  EXPECT_EQ(bias, numbers + 1);
}

TEST(Coefficients, RefuseTemporariesAndOtherTypes) {
  using Numbers = Coefficients<float>;
  EXPECT_FALSE((std::is_constructible_v<Numbers, std::vector<float>>));
  EXPECT_FALSE((std::is_constructible_v<Numbers, const std::array<float, 3>>));
  EXPECT_FALSE((std::is_constructible_v<Numbers, std::vector<double>&>));
  EXPECT_FALSE((std::is_constructible_v<Numbers, const double*>));
  EXPECT_FALSE((std::is_convertible_v<float, Numbers>));
  EXPECT_TRUE((std::is_nothrow_copy_assignable_v<Numbers>));
}

TEST(Coefficients, AreCheckedByLinear) {
  TestTensor<float> x({2, 1, 3, 4}), weight({1, 1, 5, 4}), out({2, 1, 3, 5}), other({2, 1, 3, 5});
  x.fill_uniform(1);
  weight.fill_uniform(2);
  std::vector<float> bias = {1, 2, 3, 4, 5};
  linear(x.view(), LinearWeights<float>{weight.view(), bias}, out.view());
  linear(x.view(), LinearWeights<float>{weight.view(), bias.data()}, other.view());
  EXPECT_TRUE(same_bits(out.view(), other.view()));
  // None, as null is.
  const std::vector<float> none;
  linear(x.view(), LinearWeights<float>{weight.view(), none}, out.view());
  linear(x.view(), LinearWeights<float>{weight.view()}, other.view());
  EXPECT_TRUE(same_bits(out.view(), other.view()));

  TestTensor<float> untouched({2, 1, 3, 5});
  for (const std::size_t size : {std::size_t{4}, std::size_t{6}}) {
    bias.resize(size);
    EXPECT_EQ(message_of<ShapeError>([&] {
                linear(x.view(), LinearWeights<float>{weight.view(), bias}, untouched.view());
              }),
              "linear: bias must hold one number a row of weight, 5, got " + std::to_string(size) +
                  "; got x [2, 1, 3, 4], weight [1, 1, 5, 4], bias [1, 1, 1, " +
                  std::to_string(size) + "], out [2, 1, 3, 5]");
  }
  EXPECT_EQ(message_of<ShapeError>([&] {
              const Span<const float> null(nullptr, 5);
              linear(x.view(), LinearWeights<float>{weight.view(), null}, untouched.view());
            }).substr(0, 53),
            "linear: bias is not empty, but its pointer is null; g");
  EXPECT_TRUE(untouched.is_untouched());
}

TEST(Coefficients, AreCheckedByNorms) {
  TestTensor<float> x({1, 2, 3, 4}), out({1, 2, 3, 4}), other({1, 2, 3, 4});
  x.fill_uniform(1);
  const std::vector<float> four = {1, 2, 3, 4}, three = {1, 2, 3};
  layer_norm(x.view(), LayerNormWeights<float>{four, four}, out.view());
  layer_norm(x.view(), LayerNormWeights<float>{four.data(), four.data()}, other.view());
  EXPECT_TRUE(same_bits(out.view(), other.view()));
  rms_norm(x.view(), RmsNormWeights<float>{four}, out.view());
  rms_norm(x.view(), RmsNormWeights<float>{four.data()}, other.view());
  EXPECT_TRUE(same_bits(out.view(), other.view()));

  TestTensor<float> untouched({1, 2, 3, 4});
  EXPECT_EQ(message_of<ShapeError>(
                [&] { layer_norm(x.view(), LayerNormWeights<float>{three}, untouched.view()); }),
            "layer_norm: gamma must hold one number an element of a row, 4, got 3; got x [1, 2, 3, "
            "4], gamma [1, 1, 1, 3], out [1, 2, 3, 4]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer_norm(x.view(), LayerNormWeights<float>{four, three}, untouched.view());
            }),
            "layer_norm: beta must hold one number an element of a row, 4, got 3; got x [1, 2, 3, "
            "4], gamma [1, 1, 1, 4], beta [1, 1, 1, 3], out [1, 2, 3, 4]");
  EXPECT_EQ(message_of<ShapeError>(
                [&] { rms_norm(x.view(), RmsNormWeights<float>{three}, untouched.view()); }),
            "rms_norm: gamma must hold one number an element of a row, 4, got 3; got x [1, 2, 3, "
            "4], gamma [1, 1, 1, 3], out [1, 2, 3, 4]");
  EXPECT_TRUE(untouched.is_untouched());
}

TEST(Coefficients, AreCheckedByLayersAndBlocks) {
  const LayerMemory<float> memory(config_of(6, 3));
  const std::vector<float> five(5), six(6), seven(7);
  const auto message = [&](int wrong, const std::vector<float>& bias) {
    LinearWeights<float> weights[] = {memory.query_weights(), memory.key_weights(),
                                      memory.value_weights(), memory.output_weights()};
    weights[wrong].bias = bias;
    return message_of<ShapeError>([&] {
      MultiHeadAttention<float>(memory.config, weights[0], weights[1], weights[2], weights[3]);
    });
  };
  const char* const names[] = {"query", "key", "value", "output"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(message(i, six), "(nothing was thrown)");
    for (const std::vector<float>* bias : {&five, &seven}) {
      const std::string expected = std::string("MultiHeadAttention: ") + names[i] +
                                   " bias must hold one number a row of its weight, 6, got " +
                                   std::to_string(bias->size()) + "; got query weight";
      EXPECT_EQ(message(i, *bias).substr(0, expected.size()), expected);
    }
  }
  EXPECT_TRUE(MultiHeadAttention<float>(6, 3, 1).key_weights().bias.is_counted());

  const auto block = [&](const LayerNormWeights<float>& norm) {
    return message_of<ShapeError>([&] { AttentionBlock<float>(memory.layer(), 0, norm); });
  };
  EXPECT_EQ(block({six, six}), "(nothing was thrown)");
  EXPECT_EQ(block({five, six}),
            "AttentionBlock: gamma must hold one number a feature, 6, got 5; got gamma [1, 1, 1, "
            "5], beta [1, 1, 1, 6]");
  EXPECT_EQ(block({six, seven}),
            "AttentionBlock: beta must hold one number a feature, 6, got 7; got gamma [1, 1, 1, "
            "6], beta [1, 1, 1, 7]");
}

}  // namespace
}  // namespace test
}  // namespace attn

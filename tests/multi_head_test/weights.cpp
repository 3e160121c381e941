// The weights of attention layers: own ones, as PyTorch draws them, and views of any memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "attn/layers/multi_head.hpp"
#include "multi_head_test/layer_of.hpp"
#include "support/layers.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::config_of;
using test::distinct_config;
using test::expect_same;
using test::forward;
using test::LayerMemory;
using test::LayerTensors;
using test::Results;
using test::TestTensor;

// ---- Layers that own their weights.

/// The entries of a projection's weight or bias, as doubles.
template <class T>
std::vector<double> entries(const Tensor4<const T>& tensor) {
  std::vector<double> all;
  test::for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    all.push_back(static_cast<double>(test::widen(T(tensor(b, h, i, d)))));
  });
  return all;
}

/// Uniform within `limit`: the variance of n draws is limit^2 / 3, with a deviation of
/// limit^2 sqrt(4 / (45 n)), and their mean has one of limit / sqrt(3 n). Five deviations.
void expect_uniform(const std::vector<double>& draws, double limit) {
  const double n = static_cast<double>(draws.size());
  double mean = 0, variance = 0, largest = 0;
  for (const double x : draws) {
    mean += x / n;
    variance += x * x / n;
    largest = (std::max)(largest, std::abs(x));
  }
  EXPECT_LE(largest, limit);
  EXPECT_LE(std::abs(mean), 5 * limit / std::sqrt(3 * n));
  EXPECT_LE(std::abs(variance - limit * limit / 3), 5 * limit * limit * std::sqrt(4 / (45 * n)));
}

TYPED_TEST(LayerOf, OwnWeightsAreDrawnAsPyTorchsLinear) {
  AttentionConfig config = config_of(24, 4, 2);
  config.value_dim = 10;
  config.key_input_dim = 64;
  const GroupedQueryAttention<TypeParam> layer(config, 11);
  const auto check_part = [](const LinearWeights<TypeParam>& part, Index out, Index in) {
    EXPECT_EQ(part.weight.shape(), (Shape4{1, 1, out, in}));
    // Rounding to 16 bits may move a draw to the limit, which is not beyond it.
    const double limit = static_cast<double>(
        test::widen(test::to<TypeParam>(1 / std::sqrt(static_cast<double>(in)))));
    const double room = 1 + static_cast<double>(test::epsilon<TypeParam>());
    expect_uniform(entries(part.weight), limit * room);
    expect_uniform(entries(Tensor4<const TypeParam>(part.bias, {1, 1, 1, out})), limit * room);
  };
  check_part(layer.query_weights(), 24, 24);
  check_part(layer.key_weights(), 12, 64);
  check_part(layer.value_weights(), 20, 24);
  check_part(layer.output_weights(), 24, 40);
}

TEST(OwnWeights, XavierUniform) {
  AttentionConfig config = config_of(24, 4);
  const MultiHeadAttention<float> layer(config, 12, Initialization::xavier_uniform);
  expect_uniform(entries(layer.query_weights().weight), std::sqrt(6.0 / 48));
  for (Index i = 0; i < 24; ++i) EXPECT_EQ(layer.output_weights().bias[i], 0.0f);
}

TEST(OwnWeights, WithoutBias) {
  AttentionConfig config = config_of(8, 2);
  config.bias = false;
  const MultiHeadAttention<float> layer(config, 13);
  for (const auto* part : {&layer.query_weights(), &layer.key_weights(), &layer.value_weights(),
                           &layer.output_weights()}) {
    EXPECT_EQ(part->bias, nullptr);
  }
}

TEST(OwnWeights, FollowFromTheSeedAlone) {
  const MultiHeadAttention<float> layer(16, 4, 14), again(16, 4, 14), other(16, 4, 15);
  EXPECT_EQ(entries(layer.query_weights().weight), entries(again.query_weights().weight));
  EXPECT_NE(entries(layer.query_weights().weight), entries(other.query_weights().weight));
  // The parts of a layer are drawn independently.
  EXPECT_NE(entries(layer.query_weights().weight), entries(layer.key_weights().weight));
  EXPECT_NE(entries(layer.key_weights().weight), entries(layer.value_weights().weight));
  EXPECT_NE(entries(layer.value_weights().weight), entries(layer.output_weights().weight));
  // On every machine the same: draws that another program computed.
  EXPECT_EQ(layer.query_weights().weight(0, 0, 0, 0), 0x1.2a1ee4p-5f);
  EXPECT_EQ(layer.query_weights().weight(0, 0, 15, 15), 0x1.cc0c4ap-3f);
  EXPECT_EQ(layer.query_weights().bias[0], -0x1.ea079ep-3f);
  EXPECT_EQ(layer.output_weights().weight(0, 0, 0, 3), 0x1.ab5572p-3f);
  EXPECT_EQ(layer.output_weights().bias[15], -0x1.74ada6p-3f);
}

TEST(OwnWeights, AreRightAfterCopyAndMove) {
  const LayerTensors<float> in(MultiHeadAttention<float>(8, 2, 1).config(), 2, 5, 6);
  auto original = std::make_unique<MultiHeadAttention<float>>(8, 2, 16);
  const Results<float> expected = forward<float>(*original, in);

  const MultiHeadAttention<float> copy(*original);
  MultiHeadAttention<float> assigned(8, 4, 17);
  assigned = *original;
  original.reset();
  expect_same(forward<float>(copy, in), expected, "a copy that outlives the original");
  expect_same(forward<float>(assigned, in), expected, "an assigned copy");

  const MultiHeadAttention<float> moved(std::move(assigned));
  expect_same(forward<float>(moved, in), expected, "a moved layer");
  MultiHeadAttention<float> move_assigned(8, 4, 18);
  move_assigned = MultiHeadAttention<float>(moved);
  expect_same(forward<float>(move_assigned, in), expected, "an assigned temporary");

  // One class underneath: as a value of the base, it is the same layer.
  const GroupedQueryAttention<float> base = copy;
  expect_same(forward(base, in), expected, "its base");
}

// ---- Weights that lie elsewhere.

// A fused [3 * out, in] weight, cut into the three by slices.
TEST(Layers, FusedWeights) {
  const LayerMemory<float> memory(config_of(12, 4), 9);
  TestTensor<float> fused({1, 1, 36, 12}), biases({1, 1, 1, 36});
  const TestTensor<float>*const parts[] = {&memory.query, &memory.key, &memory.value},
                                *const part_biases[] = {&memory.query_bias, &memory.key_bias,
                                                        &memory.value_bias};
  fused.fill([&](Index, Index, Index o, Index d) { return (*parts[o / 12])(0, 0, o % 12, d); });
  biases.fill(
      [&](Index, Index, Index, Index o) { return (*part_biases[o / 12])(0, 0, 0, o % 12); });
  const auto part = [&](Index i) {
    return LinearWeights<float>{fused.view().slice_length(12 * i, 12),
                                biases.view().data() + 12 * i};
  };
  const MultiHeadAttention<float> layer(memory.config, part(0), part(1), part(2),
                                        memory.output_weights());
  const LayerTensors<float> in(memory.config, 2, 18, 20);
  expect_same(forward<float>(layer, in), forward(memory.layer(), in), "fused weights");
}

TEST(LayerAccessors, GiveWhatTheLayerReads) {
  const LayerMemory<float> memory(distinct_config(), 19);
  const auto layer = memory.layer();
  EXPECT_EQ(layer.query_weights().weight.data(), memory.query.view().data());
  EXPECT_EQ(layer.key_weights().weight.data(), memory.key.view().data());
  EXPECT_EQ(layer.value_weights().weight.data(), memory.value.view().data());
  EXPECT_EQ(layer.output_weights().weight.data(), memory.output.view().data());
  EXPECT_EQ(layer.query_weights().bias, memory.query_bias.view().data());
  EXPECT_EQ(layer.output_weights().bias, memory.output_bias.view().data());
  EXPECT_EQ(layer.config().value_input_dim, 9);
}

}  // namespace
}  // namespace attn

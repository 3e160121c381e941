// What the attention layers refuse: the text of each error, and outputs that were not touched.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/layers/multi_head.hpp"
#include "support/error_cases.hpp"
#include "support/layers.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::config_of;
using test::distinct_config;
using test::LayerMemory;
using test::LayerTensors;
using test::message_of;
using test::TestTensor;

template <class Layer = GroupedQueryAttention<float>>
std::string config_error(const AttentionConfig& config) {
  return message_of<OptionError>([&] { Layer(config, 1); });
}

TEST(LayerErrors, OfConfigs) {
  EXPECT_EQ(config_error<MultiHeadAttention<float>>(config_of(10, 3)),
            "MultiHeadAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  EXPECT_EQ(config_error<MultiQueryAttention<float>>(config_of(10, 3)),
            "MultiQueryAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  EXPECT_EQ(config_error(config_of(12, 6, 4)),
            "GroupedQueryAttention: num_heads must be divisible by num_kv_heads; got num_heads 6, "
            "num_kv_heads 4");
  EXPECT_EQ(config_error<MultiHeadAttention<float>>(config_of(12, 6, 3)),
            "MultiHeadAttention: num_kv_heads must be num_heads (GroupedQueryAttention has any "
            "number); got num_kv_heads 3, num_heads 6");
  EXPECT_EQ(config_error<MultiQueryAttention<float>>(config_of(12, 6, 2)),
            "MultiQueryAttention: num_kv_heads must be 1 (GroupedQueryAttention has any number); "
            "got num_kv_heads 2, num_heads 6");
  EXPECT_EQ(config_error(config_of(0, 2)),
            "GroupedQueryAttention: model_dim and num_heads must be given; got model_dim 0");
  EXPECT_EQ(config_error(config_of(8, -1)),
            "GroupedQueryAttention: model_dim and num_heads must be given; got num_heads -1");
  const std::string negative = "GroupedQueryAttention: a size must not be negative; got ";
  const auto negative_error = [&](Index AttentionConfig::*size) {
    AttentionConfig config = config_of(8, 2);
    config.*size = -1;
    return config_error(config);
  };
  EXPECT_EQ(negative_error(&AttentionConfig::num_kv_heads), negative + "num_kv_heads -1");
  EXPECT_EQ(negative_error(&AttentionConfig::head_dim), negative + "head_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::value_dim), negative + "value_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::key_input_dim), negative + "key_input_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::value_input_dim), negative + "value_input_dim -1");
  EXPECT_EQ(message_of<OptionError>([] { MultiHeadAttention<float>(10, 3, 1); }),
            "MultiHeadAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  // A head_dim of its own needs no division.
  AttentionConfig config = config_of(10, 3);
  config.head_dim = 4;
  EXPECT_EQ(MultiHeadAttention<float>(config, 1).config().value_dim, 4);
}

TEST(LayerErrors, OfWeights) {
  const LayerMemory<float> memory(distinct_config());
  const LinearWeights<float> right[] = {memory.query_weights(), memory.key_weights(),
                                        memory.value_weights(), memory.output_weights()};
  const auto error_with = [&](int part, Index out, Index in) {
    LinearWeights<float> w[] = {right[0], right[1], right[2], right[3]};
    w[part].weight = Tensor4<const float>(w[part].weight.data(), {1, 1, out, in});
    return message_of<ShapeError>(
        [&] { GroupedQueryAttention<float>(memory.config, w[0], w[1], w[2], w[3]); });
  };
  EXPECT_EQ(error_with(0, 10, 30),
            "GroupedQueryAttention: query weight must be [1, 1, num_heads * head_dim, model_dim]; "
            "got query weight [1, 1, 10, 30], key weight [1, 1, 15, 7], value weight [1, 1, 12, "
            "9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(1, 15, 9),
            "GroupedQueryAttention: key weight must be [1, 1, num_kv_heads * head_dim, "
            "key_input_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 9], value "
            "weight [1, 1, 12, 9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(2, 24, 9),
            "GroupedQueryAttention: value weight must be [1, 1, num_kv_heads * value_dim, "
            "value_input_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 7], value "
            "weight [1, 1, 24, 9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(3, 24, 10),
            "GroupedQueryAttention: output weight must be [1, 1, model_dim, num_heads * "
            "value_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 7], value weight "
            "[1, 1, 12, 9], output weight [1, 1, 24, 10]");
  EXPECT_EQ(
      message_of<ShapeError>([&] { MultiHeadAttention<float>(config_of(4, 2), {}, {}, {}, {}); }),
      "MultiHeadAttention: query weight must be [1, 1, num_heads * head_dim, model_dim]; got "
      "query weight [0, 0, 0, 0], key weight [0, 0, 0, 0], value weight [0, 0, 0, 0], output "
      "weight [0, 0, 0, 0]");
}

/// A call that is right until a test spoils it.
struct LayerCall {
  static constexpr const char* kFunction = "GroupedQueryAttention::forward: ";
  static constexpr int kShapes = 6;

  Shape4 query{2, 1, 4, 10}, key{2, 1, 6, 7}, value{2, 1, 6, 9}, out{2, 1, 4, 10};
  Shape4 weights{2, 6, 4, 6}, log_sum_exp{2, 6, 4, 1};
  AnyMask mask;
  AttentionOptions options;

  std::string shapes(int count = kShapes) const {
    return test::list_of({{"query", query},
                          {"key", key},
                          {"value", value},
                          {"out", out},
                          {"weights", weights},
                          {"log_sum_exp", log_sum_exp}},
                         count);
  }

  template <class Error>
  std::string error() const {
    const LayerMemory<float> memory(distinct_config());
    TestTensor<float> query_(query), key_(key), value_(value), out_(out), weights_(weights),
        lse_(log_sum_exp);
    const std::string text = message_of<Error>([&] {
      memory.layer().forward(query_.view(), key_.view(), value_.view(), out_.view(), mask, options,
                             {weights_.view(), lse_.view()});
    });
    EXPECT_TRUE(out_.is_untouched());
    EXPECT_TRUE(weights_.is_untouched());
    EXPECT_TRUE(lse_.is_untouched());
    return text;
  }
};

TEST(LayerErrors, OfShapes) {
  static const std::vector<double> sinks = {1, 2};
  const std::string query = "query must be [batch, 1, length, model_dim] with model_dim 10";
  test::expect_errors<ShapeError, LayerCall>({
      {[](LayerCall& c) { c.query.dim = 8; }, query, 3},
      {[](LayerCall& c) { c.query.heads = 2; }, query, 3},
      {[](LayerCall& c) { c.key.dim = 10; },
       "key must be [batch, 1, length, key_input_dim] with key_input_dim 7", 3},
      {[](LayerCall& c) { c.value.dim = 7; },
       "value must be [batch, 1, length, value_input_dim] with value_input_dim 9", 3},
      {[](LayerCall& c) { c.key.batch = 3; }, "key must have the batch of query, or 1", 3},
      {[](LayerCall& c) { c.value.batch = 4; }, "value must have the batch of query, or 1", 3},
      {[](LayerCall& c) { c.value.length = 5; }, "key and value must have the same length", 3},
      {[](LayerCall& c) { c.out.dim = 24; },
       "out must be [batch of query, 1, length of query, model_dim]", 4},
      {[](LayerCall& c) { c.weights.heads = 3; },
       "weights must be [batch of query, num_heads, length of query, length of key]", 5},
      {[](LayerCall& c) { c.log_sum_exp.length = 3; },
       "log_sum_exp must be [batch of query, num_heads, length of query, 1]"},
      {[](LayerCall& c) { c.mask = causal(); },
       "causal() needs as many queries as keys, or a position: use causal_top_left() (offset 0), "
       "causal_bottom_right() (offset Sk - Sq), causal_from(offset) or options.query_offset"},
      {[](LayerCall& c) { c.options.sinks = sinks; },
       "options.sinks must hold one number a query head, 6, got 2"},
  });

  // Once to the last character, with the shape of a mask behind those of the tensors.
  const bool dropped[5] = {};
  LayerCall call;
  call.mask = drop_where(Tensor4<const bool>(dropped, {1, 1, 1, 5}));
  EXPECT_EQ(call.error<ShapeError>(),
            "GroupedQueryAttention::forward: the drop_where mask must have the shape of the "
            "scores, or 1, on every axis: scores [2, 6, 4, 6]; got query [2, 1, 4, 10], key [2, 1, "
            "6, 7], value [2, 1, 6, 9], out [2, 1, 4, 10], weights [2, 6, 4, 6], log_sum_exp [2, "
            "6, 4, 1], drop_where mask [1, 1, 1, 5]");
}

TEST(LayerErrors, OfSelfAttention) {
  const LayerMemory<float> memory(config_of(8, 2));
  TestTensor<float> x({2, 1, 4, 6}), out({2, 1, 4, 8});
  EXPECT_EQ(message_of<ShapeError>([&] { memory.layer().forward(x.view(), out.view()); }),
            "GroupedQueryAttention::forward: x must be [batch, 1, length, model_dim] with "
            "model_dim 8; got x [2, 1, 4, 6]");
  AttentionConfig other = config_of(8, 2);
  other.value_input_dim = 6;
  const MultiHeadAttention<float> cross(other, 1);
  TestTensor<float> right({2, 1, 4, 8});
  EXPECT_EQ(message_of<ShapeError>([&] { cross.forward(right.view(), out.view()); }),
            "MultiHeadAttention::forward: x must be [batch, 1, length, value_input_dim] with "
            "value_input_dim 6; got x [2, 1, 4, 8]");
  EXPECT_TRUE(out.is_untouched());
}

TEST(LayerErrors, OfOptions) {
  static char little[8];
  const LayerMemory<float> memory(distinct_config());
  const LayerTensors<float> in(memory.config, 2, 4, 6);
  const std::size_t bytes =
      memory.layer().workspace_bytes(in.query.view(), in.key.view(), in.value.view());
  test::expect_errors<OptionError, LayerCall>({
      {[](LayerCall& c) { c.options.scale = test::quiet_nan<double>(); },
       "options.scale must be finite in the accumulation type, got nan"},
      {[](LayerCall& c) { c.options.dropout.probability = 1.5; },
       "options.dropout.probability must lie within 0 and 1, got 1.5"},
      {[](LayerCall& c) {
         c.options.workspace = {little, sizeof little};
       },
       "options.workspace is too small: GroupedQueryAttention::workspace_bytes asks for " +
           std::to_string(bytes) + " bytes, got 8"},
  });
}

TEST(LayerErrors, OfOverlaps) {
  LayerMemory<float> memory(config_of(4, 2));
  const auto layer = memory.layer();
  std::vector<float> data(200);
  const Tensor4<float> x(data.data(), {1, 1, 3, 4});
  const auto error_of = [&](const Tensor4<float>& out, const Tensor4<float>& weights = {}) {
    return message_of<ShapeError>([&] {
      layer.forward(x, out, no_mask(), {}, AttentionOutputs<float>{weights, {}});
    });
  };
  const Tensor4<float> apart(data.data() + 100, {1, 1, 3, 4});
  EXPECT_EQ(error_of(x),
            "GroupedQueryAttention::forward: out overlaps x in memory; got x [1, 1, 3, 4], out [1, "
            "1, 3, 4]");
  EXPECT_EQ(error_of(Tensor4<float>(memory.value.view().data(), {1, 1, 3, 4})),
            "GroupedQueryAttention::forward: out overlaps a weight of the layer in memory; got x "
            "[1, 1, 3, 4], out [1, 1, 3, 4]");
  EXPECT_EQ(error_of(apart, Tensor4<float>(memory.key_bias.view().data(), {1, 2, 3, 3})),
            "GroupedQueryAttention::forward: weights overlaps a bias of the layer in memory; got x "
            "[1, 1, 3, 4], out [1, 1, 3, 4], weights [1, 2, 3, 3]");
  EXPECT_EQ(error_of(apart, Tensor4<float>(data.data() + 105, {1, 2, 3, 3})),
            "GroupedQueryAttention::forward: weights overlaps out in memory; got x [1, 1, 3, 4], "
            "out [1, 1, 3, 4], weights [1, 2, 3, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.forward(x, Tensor4<float>(nullptr, {1, 1, 3, 4}));
            }),
            "GroupedQueryAttention::forward: out is not empty, but its pointer is null; got x [1, "
            "1, 3, 4], out [1, 1, 3, 4]");
}

}  // namespace
}  // namespace attn

// Costs of layers: against counts by hand, and against the layers themselves.
#include "attn/cost.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "attn/layers/multi_head.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

AttentionConfig config_of(Index model_dim, Index num_heads, Index num_kv_heads) {
  AttentionConfig config;
  config.model_dim = model_dim;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  return config;
}

TEST(AttentionCost, CountedByHand) {
  AttentionConfig config = config_of(10, 6, 3);
  config.head_dim = 5;
  config.value_dim = 4;
  config.key_input_dim = 7;
  config.value_input_dim = 9;
  const AttentionCost cost = attention_cost("layer", config, 100, 2);
  // 30 x 10 + 15 x 7 + 12 x 9 + 10 x 24 weights; 30 + 15 + 12 + 10 biases.
  EXPECT_EQ(cost.parameters, 753 + 67);
  // For each key, 6 heads multiply 5 dims of the key and 4 of the value.
  EXPECT_EQ(cost.decode_flops, 2 * 753 + 2 * 100 * 6 * (5 + 4));
  EXPECT_EQ(cost.prefill_flops, 100 * (2 * 753 + 2 * 100 * 6 * (5 + 4)));
  EXPECT_EQ(cost.cache_bytes, 3 * (5 + 4) * 2);
  EXPECT_EQ(cost.cache_of_mha, 0.5);
  config.bias = false;
  EXPECT_EQ(attention_cost("layer", config, 100).parameters, 753);
}

TEST(AttentionCost, CountsTheParametersOfALayer) {
  for (const Index kv_heads : {1, 2, 4}) {
    const GroupedQueryAttention<float> layer(config_of(24, 4, kv_heads), 1);
    Index parameters = 0;
    for (const auto* part : {&layer.query_weights(), &layer.key_weights(), &layer.value_weights(),
                             &layer.output_weights()}) {
      parameters += part->weight.shape().size() + part->weight.length();
    }
    EXPECT_EQ(attention_cost("layer", layer.config(), 1).parameters, parameters);
  }
}

TEST(AttentionCostTable, PutsTheLayersSideBySide) {
  const AttentionCostTable table = attention_costs(config_of(512, 8, 2), 1024);
  ASSERT_EQ(table.rows.size(), 4u);
  EXPECT_EQ(table.rows[0].config.num_kv_heads, 8);
  EXPECT_EQ(table.rows[1].config.num_kv_heads, 2);
  EXPECT_EQ(table.rows[2].config.num_kv_heads, 1);
  EXPECT_EQ(table.rows[3].config.num_heads, 1);
  // One wide head costs what many heads cost.
  EXPECT_EQ(table.rows[3].prefill_flops, table.rows[0].prefill_flops);
  EXPECT_EQ(table.rows[3].parameters, table.rows[0].parameters);
  // Where there is nothing between MHA and MQA, the row is left out.
  EXPECT_EQ(attention_costs(config_of(512, 8, 8), 1).rows.size(), 3u);
  EXPECT_EQ(attention_costs(config_of(512, 8, 1), 1).rows.size(), 3u);
}

TEST(AttentionCostTable, AsText) {
  std::ostringstream text;
  text << attention_costs(config_of(512, 8, 2), 1024);
  EXPECT_EQ(text.str(),
            "attention      K/V heads  parameters  prefill GFLOP  decode MFLOP  cache B/token  of "
            "MHA\n"
            "multi-head             8     1050624          4.295         4.194           4096   "
            "1.000\n"
            "grouped-query          2      656640          3.490         3.408           1024   "
            "0.250\n"
            "multi-query            1      590976          3.355         3.277            512   "
            "0.125\n"
            "single head            1     1050624          4.295         4.194           4096   "
            "1.000\n");
}

TEST(AttentionCostErrors, OfWhatNoLayerIs) {
  EXPECT_EQ(test::message_of<OptionError>([] { attention_costs(config_of(10, 3, 0), 1); }),
            "attention_costs: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  EXPECT_EQ(test::message_of<OptionError>([] { attention_cost("x", config_of(8, 2, 0), -1); }),
            "attention_cost: length and element_bytes must be 0 or more, got -1 and 4");
}

}  // namespace
}  // namespace attn

// Article B, claim by claim: multi-head, multi-query and grouped-query attention as modules.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::config_of;
using test::LayerMemory;
using test::LayerTensors;
using test::message_of;
using test::same_bits;
using test::TestTensor;

// `masked_fill(mask == 0, -1e9)`: 0 = blocked, the opposite of articles A and C. Hence the polarity
// is in the name: this one is keep_where, and the same mask under drop_where is another.
TEST(ArticleB, ZeroIsBlocked) {
  TestTensor<double> q({2, 2, 3, 4}), k({2, 2, 5, 4}), v({2, 2, 5, 4}), filled({1, 1, 3, 5});
  TestTensor<std::uint8_t> mask({1, 1, 3, 5}), opposite({1, 1, 3, 5});
  q.fill_uniform(231);
  k.fill_uniform(232);
  v.fill_uniform(233);
  mask.fill([](Index, Index, Index i, Index j) { return (i + j) % 3 == 0 ? 0 : 1; });
  opposite.fill([&](Index b, Index h, Index i, Index j) { return 1 - mask(b, h, i, j); });
  filled.fill([&](Index b, Index h, Index i, Index j) { return mask(b, h, i, j) ? 0.0 : -1e9; });

  const auto with = [&](const auto& m) {
    return scaled_dot_product_attention(q.view(), k.view(), v.view(), m, {}, Want::weights);
  };
  const auto kept = with(keep_where(mask.view())), article = with(add_bias(filled.view()));
  test::for_each_index(kept.weights.shape(), [&](Index b, Index h, Index i, Index j) {
    if (mask(0, 0, i, j) == 0) {
      EXPECT_TRUE(same_bits(kept.weights(b, h, i, j), 0.0));
    }
    EXPECT_NEAR(kept.weights(b, h, i, j), article.weights(b, h, i, j), 1e-15);
  });
  EXPECT_TRUE(same_bits(with(drop_where(opposite.view())).output.view(), kept.output.view()));
  EXPECT_FALSE(same_bits(with(drop_where(mask.view())).output.view(), kept.output.view()));
}

// The module, step by step: projections, attention, output projection, + q, LayerNorm(1e-5).
TEST(ArticleB, TheModuleStepByStep) {
  const LayerMemory<float> memory(config_of(16, 4), 41);
  const AttentionBlock<float> block(memory.layer());
  const LayerTensors<float> in(memory.config, 2, 6, 9);
  TestTensor<std::uint8_t> mask({2, 1, 6, 9});
  mask.fill([](Index b, Index, Index i, Index j) { return (b + i + j) % 4 == 0 ? 0 : 1; });

  const auto project = [](const TestTensor<float>& x, const LinearWeights<float>& weights) {
    Tensor4Buffer<float> y({2, 1, x.shape().length, 16});
    linear(x.view(), weights, y);
    return y;
  };
  const auto split = [](Tensor4Buffer<float>& rows) {
    return bshd(rows.data(), {2, 4, rows.shape().length, 4});
  };
  auto q = project(in.query, memory.query_weights()), k = project(in.key, memory.key_weights()),
       v = project(in.value, memory.value_weights());
  Tensor4Buffer<float> heads({2, 1, 6, 16});
  TestTensor<float> weights({2, 4, 6, 9}), expected({2, 1, 6, 16});
  scaled_dot_product_attention(split(q), split(k), split(v), split(heads), keep_where(mask.view()),
                               {}, {weights.view(), {}});
  linear(heads, memory.output_weights(), expected.view());
  test::for_each_index(expected.shape(), [&](Index b, Index h, Index i, Index d) {
    expected(b, h, i, d) += in.query(b, h, i, d);
  });
  LayerNormWeights<float> norm;
  norm.epsilon = 1e-5;
  layer_norm(expected.view(), norm, expected.view());

  TestTensor<float> out({2, 1, 6, 16}), block_weights({2, 4, 6, 9});
  block.forward(in.query.view(), in.key.view(), in.value.view(), out.view(),
                keep_where(mask.view()), {}, {block_weights.view(), {}});
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  EXPECT_TRUE(same_bits(block_weights.view(), weights.view()));
}

// Step 5 says the output is batch x h x seq x d_model; it is batch x seq x d_model.
TEST(ArticleB, OutputHasNoHeads) {
  const LayerMemory<float> memory(config_of(16, 4));
  const LayerTensors<float> in(memory.config, 2, 6, 6);
  TestTensor<float> out({2, 1, 6, 16}), with_heads({2, 4, 6, 16});
  EXPECT_NO_THROW(memory.layer().forward(in.query.view(), out.view()));
  EXPECT_EQ(
      message_of<ShapeError>([&] { memory.layer().forward(in.query.view(), with_heads.view()); }),
      "GroupedQueryAttention::forward: out must be [batch of query, 1, length of query, "
      "model_dim]; got x [2, 1, 6, 16], out [2, 4, 6, 16]");
}

// The GQA code adds a (B, 1, Sq, Sk) mask to (B, G, H / G, Sq, Sk) scores: right-aligned, the
// mask's batch meets the groups. With B = G = 2 that passes unnoticed. Here a mask of one batch is
// that batch's, for every group.
TEST(ArticleB, MasksAreIndexedByBatchNotByGroup) {
  const LayerMemory<float> memory(config_of(16, 4, 2), 42);
  const auto layer = memory.layer();
  const LayerTensors<float> in(memory.config, 2, 5, 7);
  TestTensor<std::uint8_t> mask({2, 1, 5, 7});
  mask.fill([](Index b, Index, Index i, Index j) { return b == 0 ? j <= i : j > i; });
  TestTensor<float> out({2, 1, 5, 16}), weights({2, 4, 5, 7});
  layer.forward(in.query.view(), in.key.view(), in.value.view(), out.view(),
                keep_where(mask.view()), {}, {weights.view(), {}});
  test::for_each_index(weights.shape(), [&](Index b, Index h, Index i, Index j) {
    EXPECT_EQ(weights(b, h, i, j) == 0, mask(b, 0, i, j) == 0) << b << " " << h;
  });
  for (Index b = 0; b < 2; ++b) {
    TestTensor<float> alone({1, 1, 5, 16});
    layer.forward(in.query.view().slice_batch(b, 1), in.key.view().slice_batch(b, 1),
                  in.value.view().slice_batch(b, 1), alone.view(),
                  keep_where(mask.view().slice_batch(b, 1)));
    EXPECT_TRUE(same_bits(alone.view(), out.view().slice_batch(b, 1)));
  }
}

// 'Many heads cost about what one head costs': in flops exactly what it costs.
TEST(ArticleB2, ManyHeadsCostWhatOneCosts) {
  const AttentionCostTable table = attention_costs(config_of(512, 8), 2048);
  const AttentionCost &many = table.rows.front(), &one = table.rows.back();
  EXPECT_EQ(many.config.num_heads, 8);
  EXPECT_EQ(one.config.num_heads, 1);
  EXPECT_EQ(one.config.head_dim, 512);
  EXPECT_EQ(many.prefill_flops, one.prefill_flops);
  EXPECT_EQ(many.decode_flops, one.decode_flops);
}

// The modules' assertions.
TEST(ArticleB2, HeadsMustDivide) {
  EXPECT_EQ(message_of<OptionError>([] { MultiHeadAttention<float>(512, 7, 1); }),
            "MultiHeadAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 512, num_heads 7");
  EXPECT_EQ(message_of<OptionError>([] { GroupedQueryAttention<float>(config_of(512, 8, 3), 1); }),
            "GroupedQueryAttention: num_heads must be divisible by num_kv_heads; got num_heads 8, "
            "num_kv_heads 3");
}

// MQA's code repeats K and V for each head; sharing them gives the same. Not the same bits: heads
// that share are computed together, and in another form if there are 16 rows or more of them.
TEST(ArticleB3, RepeatingKeysAndValuesGivesTheSame) {
  constexpr Index kHeads = 4;
  TestTensor<float> q({2, kHeads, 6, 8}), k({2, 1, 9, 8}), v({2, 1, 9, 8});
  q.fill_uniform(241);
  k.fill_uniform(242);
  v.fill_uniform(243);
  const auto repeat = [&](const TestTensor<float>& one) {
    TestTensor<float> all({2, kHeads, 9, 8});
    all.fill([&](Index b, Index, Index i, Index d) { return one(b, 0, i, d); });
    return all;
  };
  const TestTensor<float> repeated_k = repeat(k), repeated_v = repeat(v);
  const auto shared = scaled_dot_product_attention(q.view(), k.view(), v.view());
  const auto repeated =
      scaled_dot_product_attention(q.view(), repeated_k.view(), repeated_v.view());
  // Scores lie within 8 / sqrt(8), values within 1; each side is within (6 + 3 |score|) epsilon.
  const float tolerance = 2 * (6 + 3 * std::sqrt(8.0f)) * 0x1p-23f;
  test::for_each_index(shared.output.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_NEAR(shared.output(b, h, i, d), repeated.output(b, h, i, d), tolerance);
  });
  // A stride of 0 repeats without a copy, and is that call to the last bit.
  const auto stride_of_0 = [](const TestTensor<float>& one) {
    const Stride4 s = one.view().stride();
    return Tensor4<const float>(one.view().data(), {2, kHeads, 9, 8}, {s.batch, 0, s.length, 1});
  };
  const auto broadcast = scaled_dot_product_attention(q.view(), stride_of_0(k), stride_of_0(v));
  EXPECT_TRUE(same_bits(broadcast.output.view(), repeated.output.view()));
}

// 'GQA-1 = MQA, GQA-H = MHA', as modules, to the last bit.
TEST(ArticleB4, GroupedQueryAttentionIsBothOthers) {
  const auto block_output = [](const GroupedQueryAttention<float>& layer) {
    const AttentionBlock<float> block(layer);
    const LayerTensors<float> in(layer.config(), 2, 20, 20);
    TestTensor<float> out(in.query.shape());
    AttentionOptions options;
    options.dropout.seed = 3;
    block.forward(in.query.view(), out.view(), causal(), options, {}, BlockMode::training);
    return out;
  };
  const AttentionConfig one = config_of(16, 4, 1), all = config_of(16, 4, 4);
  EXPECT_TRUE(same_bits(block_output(GroupedQueryAttention<float>(one, 43)).view(),
                        block_output(MultiQueryAttention<float>(one, 43)).view()));
  EXPECT_TRUE(same_bits(block_output(GroupedQueryAttention<float>(all, 43)).view(),
                        block_output(MultiHeadAttention<float>(all, 43)).view()));
}

// h = 8 heads in g = 2 groups need a quarter of MHA's KV cache (2 / 8), and MQA an eighth.
TEST(ArticleB4, AQuarterOfTheCache) {
  const AttentionCostTable table = attention_costs(config_of(512, 8, 2), 1, 2);
  EXPECT_EQ(table.rows[1].cache_of_mha, 0.25);
  EXPECT_EQ(4 * table.rows[1].cache_bytes, table.rows[0].cache_bytes);
  EXPECT_EQ(8 * table.rows[2].cache_bytes, table.rows[0].cache_bytes);
  // 8 heads of 64 numbers, for keys and for values, of 2 bytes.
  EXPECT_EQ(table.rows[0].cache_bytes, 8 * 64 * 2 * 2);
}

// dropout = 0.1 by default; in evaluation it does nothing, bit for bit.
TEST(ArticleB, DropoutByDefaultAndInEvaluation) {
  const LayerMemory<float> memory(config_of(16, 4), 44);
  const AttentionBlock<float> block(memory.layer()), without(memory.layer(), 0);
  EXPECT_EQ(block.dropout(), 0.1);
  const LayerTensors<float> in(memory.config, 2, 20, 20);
  const auto output = [&](const AttentionBlock<float>& b, BlockMode mode) {
    TestTensor<float> out(in.query.shape());
    b.forward(in.query.view(), out.view(), no_mask(), {}, {}, mode);
    return out;
  };
  const TestTensor<float> evaluation = output(block, BlockMode::evaluation);
  EXPECT_TRUE(same_bits(evaluation.view(), output(without, BlockMode::evaluation).view()));
  EXPECT_FALSE(same_bits(evaluation.view(), output(block, BlockMode::training).view()));
}

}  // namespace
}  // namespace attn

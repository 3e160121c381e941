// What a layer does to the heads of queries and keys: a property of the layer, which every pass of
// it applies.
#include "attn/layers/head_transform.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/attention_block.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kModel = 24, kHeads = 6, kKvHeads = 2, kHeadDim = 8, kValueDim = 5;

AttentionConfig config() {
  AttentionConfig config = config_of(kModel, kHeads, kKvHeads);
  config.head_dim = kHeadDim;
  config.value_dim = kValueDim;
  return config;
}

/// A layer with a transform of each kind, and what it is made of.
struct TransformedLayer {
  LayerMemory<float> memory{config()};
  std::vector<float> query_gamma, key_gamma;
  RotaryEmbedding rotary{kHeadDim, RotaryPairing::half_split, 100};
  HeadTransform<float> transform;
  GroupedQueryAttention<float> layer = memory.layer();

  TransformedLayer() {
    for (Index i = 0; i < kHeadDim; ++i) {
      query_gamma.push_back(1 + to<float>(uniform(1, static_cast<std::uint64_t>(i))));
      key_gamma.push_back(1 + to<float>(uniform(2, static_cast<std::uint64_t>(i))));
    }
    transform.query_norm = RmsNormWeights<float>{query_gamma, 1e-5};
    transform.key_norm = RmsNormWeights<float>{key_gamma, 1e-6};
    transform.rotary = &rotary;
    layer.set_head_transform(transform);
  }

  /// The layer by the public functions: queries stand at first_query on, keys at 0 on.
  template <class M = NoMask>
  TestTensor<float> composed(const TestTensor<float>& query, const TestTensor<float>& key,
                             const PerBatch& first_query, const RotaryEmbedding& turned,
                             const M& mask = M()) const {
    const Index batch = query.shape().batch, queries = query.shape().length;
    const Index keys = key.shape().length;
    TestTensor<float> q({batch, kHeads, queries, kHeadDim}, Layout::bshd),
        k({batch, kKvHeads, keys, kHeadDim}, Layout::bshd),
        v({batch, kKvHeads, keys, kValueDim}, Layout::bshd),
        heads({batch, kHeads, queries, kValueDim}, Layout::bshd);
    const auto rows = [](TestTensor<float>& tensor) {
      const Shape4& s = tensor.shape();
      return Tensor4<float>(tensor.view().data(), Shape4{s.batch, 1, s.length, s.heads * s.dim});
    };
    linear(query.view(), memory.query_weights(), rows(q));
    linear(key.view(), memory.key_weights(), rows(k));
    linear(key.view(), memory.value_weights(), rows(v));
    rms_norm(q.view(), *transform.query_norm, q.view());
    rms_norm(k.view(), *transform.key_norm, k.view());
    turned.apply(q.view(), first_query);
    turned.apply(k.view(), 0);
    AttentionOptions options;
    options.query_offset = first_query;
    scaled_dot_product_attention(q.view(), k.view(), v.view(), heads.view(), mask, options);
    TestTensor<float> out(query.shape());
    linear(rows(heads), memory.output_weights(), out.view());
    return out;
  }
};

TestTensor<float> tokens(Index batch, Index length, std::uint64_t seed = 1) {
  TestTensor<float> x({batch, 1, length, kModel});
  x.fill_uniform(seed, 2);
  return x;
}

TEST(HeadTransform, IsAppliedBySelfAttention) {
  const TransformedLayer t;
  const auto x = tokens(2, 20);
  TestTensor<float> out(x.shape());
  t.layer.forward(x.view(), out.view(), causal());
  EXPECT_TRUE(same_bits(out.view(), t.composed(x, x, 0, t.rotary, causal()).view()));
}

TEST(HeadTransform, OfCrossAttentionTurnsQueriesToTheOffsetAndKeysFromZero) {
  const TransformedLayer t;
  const auto query = tokens(2, 5), key = tokens(2, 19, 7);
  TestTensor<float> out(query.shape());
  t.layer.forward(query.view(), key.view(), key.view(), out.view());
  EXPECT_TRUE(same_bits(out.view(), t.composed(query, key, 19 - 5, t.rotary).view()));

  AttentionOptions options;
  const std::vector<Index> offsets = {3, -40};
  options.query_offset = PerBatch(offsets);
  t.layer.forward(query.view(), key.view(), key.view(), out.view(), no_mask(), options);
  EXPECT_TRUE(same_bits(out.view(), t.composed(query, key, offsets, t.rotary).view()));

  t.layer.forward(query.view(), key.view(), key.view(), out.view(), causal_from(6));
  EXPECT_TRUE(same_bits(out.view(), t.composed(query, key, 6, t.rotary, causal()).view()));
}

TEST(HeadTransform, IsAppliedByPassesOverCaches) {
  const TransformedLayer t;
  auto plain = t.memory.layer();
  plain.set_query_key_norm(*t.transform.query_norm, *t.transform.key_norm);
  const auto x = tokens(2, 12), more = tokens(2, 3, 9);
  KeyValueCache<float> cache(2, kKvHeads, 64, kHeadDim, kValueDim), expected_cache = cache;
  TestTensor<float> out(x.shape()), expected(x.shape());
  t.layer.step(x.view(), cache, out.view(), causal());
  EXPECT_TRUE(same_bits(out.view(), t.composed(x, x, 0, t.rotary, causal()).view()));

  // The rest as with the argument of each call, which other tests hold to the pieces.
  plain.step(x.view(), expected_cache, expected.view(), causal(), {}, &t.rotary);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  t.layer.append(more.view(), more.view(), cache);
  plain.append(more.view(), more.view(), expected_cache, {}, &t.rotary);
  EXPECT_TRUE(same_bits(cache.keys(), expected_cache.keys()));
  TestTensor<float> three(more.shape()), expected_three(more.shape());
  t.layer.attend(more.view(), cache, three.view(), causal());
  plain.attend(more.view(), expected_cache, expected_three.view(), causal(), {}, &t.rotary);
  EXPECT_TRUE(same_bits(three.view(), expected_three.view()));
}

TEST(HeadTransform, GivesWayToTheRotaryEmbeddingOfACall) {
  const TransformedLayer t;
  const RotaryEmbedding other(kHeadDim, RotaryPairing::interleaved, 50);
  const auto x = tokens(2, 12);
  TestTensor<float> out(x.shape());
  t.layer.forward(x.view(), out.view(), causal(), {}, {}, &other);
  const auto expected = t.composed(x, x, 0, other, causal());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  t.layer.forward(x.view(), x.view(), x.view(), out.view(), causal(), {}, {}, &other);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  KeyValueCache<float> cache(2, kKvHeads, 64, kHeadDim, kValueDim);
  t.layer.step(x.view(), cache, out.view(), causal(), {}, &other);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

TEST(HeadTransform, IsAppliedInsideABlock) {
  const TransformedLayer t;
  const AttentionBlock<float> block(t.layer);
  const auto query = tokens(2, 5), key = tokens(2, 19, 7);
  TestTensor<float> out(query.shape());
  block.forward(query.view(), key.view(), key.view(), out.view());
  auto expected = t.composed(query, key, 14, t.rotary);
  expected.fill(
      [&](Index b, Index h, Index i, Index d) { return expected(b, h, i, d) + query(b, h, i, d); });
  layer_norm(expected.view(), LayerNormWeights<float>{}, expected.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

TEST(HeadTransform, IsKeptByTheLayer) {
  const TransformedLayer t;
  GroupedQueryAttention<float> copy = t.layer;
  EXPECT_EQ(copy.head_transform().rotary, &t.rotary);
  EXPECT_EQ(copy.head_transform().query_norm->gamma, t.query_gamma.data());
  copy.set_query_key_norm({}, {t.query_gamma, 1});
  EXPECT_EQ(copy.head_transform().rotary, &t.rotary);
  EXPECT_EQ(copy.head_transform().query_norm->gamma, nullptr);
  EXPECT_EQ(copy.head_transform().key_norm->epsilon, 1);
  copy.set_head_transform({});
  const auto x = tokens(1, 9);
  TestTensor<float> out(x.shape()), expected(x.shape());
  copy.forward(x.view(), out.view());
  t.memory.layer().forward(x.view(), expected.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

TEST(HeadTransform, IsCheckedWhenItIsSet) {
  TransformedLayer t;
  const std::vector<float> seven(7);
  const RotaryEmbedding six(6, RotaryPairing::half_split);
  HeadTransform<float> wrong;
  wrong.key_norm = RmsNormWeights<float>{seven};
  EXPECT_EQ(message_of<ShapeError>([&] { t.layer.set_head_transform(wrong); }),
            "GroupedQueryAttention::set_head_transform: the key norm must hold one number an "
            "element of a head, 8, got 7; got the key norm [1, 1, 1, 7]");
  EXPECT_EQ(message_of<ShapeError>([&] { t.layer.set_query_key_norm({seven}, {}); }),
            "GroupedQueryAttention::set_query_key_norm: the query norm must hold one number an "
            "element of a head, 8, got 7; got the query norm [1, 1, 1, 7]");
  EXPECT_EQ(message_of<OptionError>([&] {
              t.layer.set_query_key_norm({}, {nullptr, -1});
            }),
            "GroupedQueryAttention::set_query_key_norm: the epsilon of the key norm must be finite "
            "and 0 or more, got -1");
  wrong = {};
  wrong.rotary = &six;
  EXPECT_EQ(message_of<ShapeError>([&] { t.layer.set_head_transform(wrong); }),
            "GroupedQueryAttention::set_head_transform: the rotary embedding must have the "
            "head_dim of the layer, 8, not 6");
  EXPECT_EQ(t.layer.head_transform().rotary, &t.rotary);
  EXPECT_EQ(t.layer.head_transform().key_norm->gamma, t.key_gamma.data());
}

}  // namespace
}  // namespace test
}  // namespace attn

// Layers with a cache: step, attend, append, rotation and the normalisation of heads.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
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

TestTensor<float> tokens(Index batch, Index length, std::uint64_t seed = 1) {
  TestTensor<float> x({batch, 1, length, kModel});
  x.fill_uniform(seed, 2);
  return x;
}

KeyValueCache<float> contiguous(Index batch) {
  return KeyValueCache<float>(batch, kKvHeads, 64, kHeadDim, kValueDim);
}

/// Feeds x in chunks and returns all outputs.
template <class Layer, class Cache, class M>
TestTensor<float> fed(const Layer& layer, const TestTensor<float>& x, Index chunk, Cache& cache,
                      const M& mask, const RotaryEmbedding* rotary = nullptr,
                      Executor* executor = nullptr) {
  TestTensor<float> out(x.shape());
  AttentionOptions options;
  options.executor = executor;
  for (Index i = 0; i < x.shape().length; i += chunk) {
    const Index count = (std::min)(chunk, x.shape().length - i);
    layer.step(x.view().slice_length(i, count), cache, out.view().slice_length(i, count), mask,
               options, rotary);
  }
  return out;
}

/// The layer's formula, from the public pieces.
template <class M>
TestTensor<float> composed(const LayerMemory<float>& memory, const TestTensor<float>& x,
                           const M& mask, const RotaryEmbedding* rotary,
                           const RmsNormWeights<float>* query_norm = nullptr,
                           const RmsNormWeights<float>* key_norm = nullptr) {
  const Index batch = x.shape().batch, length = x.shape().length;
  TestTensor<float> q({batch, kHeads, length, kHeadDim}, Layout::bshd),
      k({batch, kKvHeads, length, kHeadDim}, Layout::bshd),
      v({batch, kKvHeads, length, kValueDim}, Layout::bshd),
      heads({batch, kHeads, length, kValueDim}, Layout::bshd);
  const auto rows = [](TestTensor<float>& tensor) {
    const Shape4& s = tensor.shape();
    return Tensor4<float>(tensor.view().data(), Shape4{s.batch, 1, s.length, s.heads * s.dim});
  };
  linear(x.view(), memory.query_weights(), rows(q));
  linear(x.view(), memory.key_weights(), rows(k));
  linear(x.view(), memory.value_weights(), rows(v));
  if (query_norm != nullptr) rms_norm(q.view(), *query_norm, q.view());
  if (key_norm != nullptr) rms_norm(k.view(), *key_norm, k.view());
  if (rotary != nullptr) {
    rotary->apply(q.view(), 0);
    rotary->apply(k.view(), 0);
  }
  scaled_dot_product_attention(q.view(), k.view(), v.view(), heads.view(), mask);
  TestTensor<float> out(x.shape());
  linear(rows(heads), memory.output_weights(), out.view());
  return out;
}

/// How far two orders of the same sums may lie apart: projections and scores of a few hundred
/// terms of magnitude 1, each side off by less than 100 epsilon of the largest output.
void expect_close(const TestTensor<float>& actual, const TestTensor<float>& expected) {
  const long double bar = 200 * epsilon<float>() * (1 + largest_magnitude(expected.view()));
  EXPECT_LE(largest_difference(actual.view(), expected.view()), bar);
}

TEST(LayerStep, OneShotHasTheBitsOfItsPieces) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  const auto x = tokens(2, 40);
  for (const RotaryEmbedding* turned : {static_cast<const RotaryEmbedding*>(nullptr), &rotary}) {
    const auto expected = composed(memory, x, causal(), turned);
    KeyValueCache<float> cache = contiguous(2);
    EXPECT_TRUE(same_bits(fed(layer, x, 40, cache, causal(), turned).view(), expected.view()));
    TestTensor<float> out(x.shape());
    layer.forward(x.view(), out.view(), causal(), {}, {}, turned);
    EXPECT_TRUE(same_bits(out.view(), expected.view()));
  }
}

TEST(LayerStep, ChunksAgreeWithOneShot) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::interleaved, 100);
  const auto x = tokens(2, 40);
  const auto expected = composed(memory, x, causal(), &rotary);
  const auto window = composed(memory, x, causal() & sliding_window(6, 0), &rotary);
  for (const Index chunk : {1, 3, 16, 17, 39}) {
    SCOPED_TRACE(chunk);
    KeyValueCache<float> plain = contiguous(2);
    PagedKeyValueCache<float> paged(30, 4, 2, kKvHeads, kHeadDim, kValueDim);
    const auto in_chunks = fed(layer, x, chunk, plain, causal(), &rotary);
    expect_close(in_chunks, expected);
    // The kind of cache changes no bit.
    EXPECT_TRUE(same_bits(fed(layer, x, chunk, paged, causal(), &rotary).view(), in_chunks.view()));
    RollingKeyValueCache<float> rolling(2, kKvHeads, 7, kHeadDim, kValueDim);
    expect_close(fed(layer, x, chunk, rolling, causal(), &rotary), window);
  }
}

TEST(LayerStep, EqualChunksHaveEqualBits) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  const auto x = tokens(3, 40);
  for (const Index chunk : {1, 5, 20}) {
    KeyValueCache<float> cache = contiguous(3);
    const auto expected = fed(layer, x, chunk, cache, causal(), &rotary);
    for (const int threads : {2, 3, 8}) {
      ThreadPool pool(threads);
      KeyValueCache<float> own = contiguous(3);
      EXPECT_TRUE(
          same_bits(fed(layer, x, chunk, own, causal(), &rotary, &pool).view(), expected.view()));
      EXPECT_TRUE(same_bits(own.keys(), cache.keys()));
    }
    for (Index b = 0; b < 3; ++b) {
      TestTensor<float> one({1, 1, 40, kModel});
      one.fill([&](Index, Index, Index i, Index d) { return x(b, 0, i, d); });
      KeyValueCache<float> alone = contiguous(1);
      EXPECT_TRUE(same_bits(fed(layer, one, chunk, alone, causal(), &rotary).view(),
                            expected.view().slice_batch(b, 1)));
    }
  }
}

TEST(LayerStep, PaddingBehindAPromptIsTakenBack) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  const std::vector<Index> lengths = {9, 4};
  auto x = tokens(2, 9);
  KeyValueCache<float> cache = contiguous(2);
  fed(layer, x, 9, cache, causal(), &rotary);
  cache.truncate(lengths);
  const auto next = tokens(2, 1, 5);
  const auto out = fed(layer, next, 1, cache, causal(), &rotary);
  for (Index b = 0; b < 2; ++b) {
    const Index length = lengths[static_cast<std::size_t>(b)];
    TestTensor<float> whole({1, 1, length + 1, kModel});
    whole.fill([&](Index, Index, Index i, Index d) {
      return i < length ? x(b, 0, i, d) : next(b, 0, 0, d);
    });
    const auto expected = composed(memory, whole, causal(), &rotary);
    TestTensor<float> last({1, 1, 1, kModel}), actual({1, 1, 1, kModel});
    last.fill([&](Index, Index, Index, Index d) { return expected(0, 0, length, d); });
    actual.fill([&](Index, Index, Index, Index d) { return out(b, 0, 0, d); });
    expect_close(actual, last);
  }
}

TEST(LayerStep, NormalisesTheHeadsOfQueriesAndKeys) {
  const LayerMemory<float> memory(config());
  auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  TestTensor<float> gamma({1, 1, 2, kHeadDim});
  gamma.fill_uniform(9, 2);
  const RmsNormWeights<float> query{&gamma(0, 0, 0, 0), 1e-6}, key{&gamma(0, 0, 1, 0), 1e-5};
  layer.set_query_key_norm(query, key);
  const auto x = tokens(2, 20);
  const auto expected = composed(memory, x, causal(), &rotary, &query, &key);
  KeyValueCache<float> cache = contiguous(2);
  EXPECT_TRUE(same_bits(fed(layer, x, 20, cache, causal(), &rotary).view(), expected.view()));
  TestTensor<float> out(x.shape());
  layer.forward(x.view(), out.view(), causal(), {}, {}, &rotary);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  layer.set_query_key_norm(RmsNormWeights<float>{&out(1, 0, 3, 0), 1e-6}, key);
  EXPECT_EQ(message_of<ShapeError>([&] { layer.forward(x.view(), out.view()); }).substr(0, 76),
            "GroupedQueryAttention::forward: out overlaps a norm of the layer in memory; ");
}

TEST(LayerStep, CrossAttentionReadsWhatWasAppended) {
  AttentionConfig cross = config();
  cross.key_input_dim = 7;
  cross.value_input_dim = 9;
  const LayerMemory<float> memory(cross);
  const auto layer = memory.layer();
  TestTensor<float> key({2, 1, 30, 7}), value({2, 1, 30, 9});
  key.fill_uniform(3);
  value.fill_uniform(4);
  KeyValueCache<float> cache = contiguous(2);
  layer.append(key.view(), value.view(), cache);
  EXPECT_EQ(cache.length(1), 30);
  const auto x = tokens(2, 5);
  TestTensor<float> out(x.shape()), expected(x.shape());
  for (int call = 0; call < 2; ++call) {  // nothing is appended by the first
    layer.attend(x.view(), cache, out.view());
    layer.forward(x.view(), key.view(), value.view(), expected.view());
    EXPECT_TRUE(same_bits(out.view(), expected.view()));
  }
  EXPECT_EQ(cache.length(1), 30);
}

TEST(LayerStep, LayersShareKeysAndValues) {
  const LayerMemory<float> first(config(), 1), second(config(), 50);
  const auto writes = first.layer(), reads = second.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  const auto x = tokens(2, 12);
  KeyValueCache<float> cache = contiguous(2);
  fed(writes, x, 12, cache, causal(), &rotary);
  TestTensor<float> shared(x.shape()), expected(x.shape());
  reads.attend(x.view(), cache, shared.view(), causal(), {}, &rotary);
  // A layer with the queries of one and the keys of the other.
  const GroupedQueryAttention<float> both(config(), second.query_weights(), first.key_weights(),
                                          first.value_weights(), second.output_weights());
  both.forward(x.view(), expected.view(), causal(), {}, {}, &rotary);
  EXPECT_TRUE(same_bits(shared.view(), expected.view()));
  // One sequence may serve many batches of queries.
  KeyValueCache<float> single = contiguous(1);
  const auto one = tokens(1, 12);
  fed(writes, one, 12, single, causal(), &rotary);
  reads.attend(x.view(), single, shared.view(), causal(), {}, &rotary);
  EXPECT_EQ(single.length(0), 12);
}

TEST(LayerStep, StoresAnyElementType) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const auto x = tokens(2, 20);
  KeyValueCache<float> wide = contiguous(2);
  KeyValueCache<Eigen::half> narrow(2, kKvHeads, 64, kHeadDim, kValueDim);
  const auto expected = fed(layer, x, 20, wide, causal());
  const auto out = fed(layer, x, 20, narrow, causal());
  // Keys and values are off by half a step of half, 2^-11: scores of a few units, and outputs.
  EXPECT_LE(largest_difference(out.view(), expected.view()), 0x1p-6L);
  EXPECT_TRUE(
      same_bits(narrow.keys()(1, 1, 19, 3), static_cast<Eigen::half>(wide.keys()(1, 1, 19, 3))));
}

TEST(LayerStep, WhatIsWrongAppendsNothing) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  KeyValueCache<float> cache(2, kKvHeads, 8, kHeadDim, kValueDim);
  const auto x = tokens(2, 6);
  fed(layer, x, 6, cache, causal());
  const KeyValueCache<float> before = cache;
  TestTensor<float> out(x.shape());
  const auto expect_refused = [&](const std::string& text, const std::string& message) {
    EXPECT_EQ(message.substr(0, text.size()), text);
    EXPECT_EQ(cache.length(0), 6);
    EXPECT_TRUE(same_bits(cache.keys(), before.keys()));
    EXPECT_TRUE(out.is_untouched());
  };
  expect_refused(
      "KeyValueCache::append: append past capacity: sequence 0 holds 6 of 8 tokens, 6 "
      "more do not fit",
      message_of<ShapeError>([&] { layer.step(x.view(), cache, out.view(), causal()); }));
  const auto two = x.view().slice_length(0, 2);
  const auto out_two = out.view().slice_length(0, 2);
  TestTensor<bool> keep({1, 1, 2, 7});
  expect_refused(
      "GroupedQueryAttention::step: the keep_where mask must have the shape of the "
      "scores, or 1, on every axis: scores [2, 6, 2, 8]",
      message_of<ShapeError>([&] { layer.step(two, cache, out_two, keep_where(keep.view())); }));
  AttentionOptions options;
  options.softcap = -1;
  expect_refused("GroupedQueryAttention::step: options.softcap", message_of<OptionError>([&] {
                   layer.step(two, cache, out_two, causal(), options);
                 }));
  const RotaryEmbedding other(6, RotaryPairing::half_split);
  expect_refused(
      "GroupedQueryAttention::step: the rotary embedding must have the head_dim of the "
      "layer, 8, not 6",
      message_of<ShapeError>([&] { layer.step(two, cache, out_two, causal(), {}, &other); }));
  KeyValueCache<float> heads(2, 1, 8, kHeadDim, kValueDim), dims(2, kKvHeads, 8, kHeadDim);
  KeyValueCache<float> batch(3, kKvHeads, 8, kHeadDim, kValueDim);
  expect_refused(
      "GroupedQueryAttention::step: the cache must have the num_kv_heads of the layer; "
      "got x [2, 1, 2, 24], out [2, 1, 2, 24], cached keys [2, 1, 2, 8], cached values "
      "[2, 1, 2, 5]",
      message_of<ShapeError>([&] { layer.step(two, heads, out_two); }));
  expect_refused(
      "GroupedQueryAttention::step: the cache must have the head_dim and value_dim of "
      "the layer",
      message_of<ShapeError>([&] { layer.step(two, dims, out_two); }));
  expect_refused("GroupedQueryAttention::step: the cache must hold the batch of x, or one sequence",
                 message_of<ShapeError>([&] { layer.step(two, batch, out_two); }));
  TestTensor<float> narrow({2, 1, 2, 5});
  expect_refused(
      "GroupedQueryAttention::step: x must be [batch, 1, length, model_dim] with "
      "model_dim 24",
      message_of<ShapeError>([&] { layer.step(narrow.view(), cache, out_two); }));
  expect_refused(
      "GroupedQueryAttention::attend: x must be [batch, 1, length, model_dim] with "
      "model_dim 24",
      message_of<ShapeError>([&] { layer.attend(narrow.view(), cache, out_two); }));
  EXPECT_EQ(heads.length(0) + dims.length(0) + batch.length(0), 0);
}

TEST(LayerStep, RefusesQueriesThatSeeEvictedTokensBeforeAnythingIsAppended) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  RollingKeyValueCache<float> cache(1, kKvHeads, 6, kHeadDim, kValueDim, 2);
  const auto x = tokens(1, 30), three = tokens(1, 3);
  fed(layer, x, 1, cache, causal());
  TestTensor<float> out(three.shape());
  out.fill_value(5);
  const TestTensor<float> before = out;
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.attend(three.view(), cache, out.view(), causal());
            }).substr(0, 111),
            "GroupedQueryAttention::attend: query 0 of batch 0, at position 27, sees key 22, and "
            "the cache holds none before");
  // Token 24 is held now, and is not once three tokens more have been appended.
  AttentionOptions options;
  options.query_offset = 29;
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.step(three.view(), cache, out.view(), causal(), options);
            }).substr(0, 112),
            "GroupedQueryAttention::step: query 0 of batch 0, at position 29, sees key 24, and the "
            "cache holds none before 25");
  EXPECT_TRUE(same_bits(out.view(), before.view()));
  EXPECT_EQ(cache.length(0), 30);
  EXPECT_NO_THROW(layer.step(three.view(), cache, out.view(), causal()));
}

TEST(LayerStep, StepsWithAWorkspaceAllocateNothing) {
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  KeyValueCache<float> cache = contiguous(2);
  RollingKeyValueCache<float> rolling(2, kKvHeads, 9, kHeadDim, kValueDim, 4);
  const auto x = tokens(2, 4);
  TestTensor<float> out(x.shape());
  const auto step = [&](auto& any) {
    std::vector<char> bytes(layer.step_workspace_bytes(x.view(), any, causal()));
    AttentionOptions options;
    options.workspace = {bytes.data(), bytes.size()};
    allocations().reset();
    for (int i = 0; i < 5; ++i) {
      layer.step(x.view(), any, out.view(), causal(), options, &rotary);
    }
    EXPECT_EQ(allocations().count.load(), 0u);
    options.workspace.bytes /= 2;
    EXPECT_EQ(message_of<OptionError>([&] {
                layer.step(x.view(), any, out.view(), causal(), options);
              }).substr(0, 111),
              "GroupedQueryAttention::step: options.workspace is too small: "
              "GroupedQueryAttention::step_workspace_bytes asks f");
    EXPECT_EQ(any.length(0), 20);
  };
  step(cache);
  step(rolling);
}

}  // namespace
}  // namespace test
}  // namespace attn

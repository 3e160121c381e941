// A workspace that is sized once, over an empty cache, serves every length that the cache can take,
// and no step allocates.
#include <gtest/gtest.h>

#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kLength = 5000, kModel = 8, kHeadDim = 2;

AttentionConfig sizes(Index kv_heads) {
  AttentionConfig config = config_of(kModel, 4, kv_heads);
  config.head_dim = kHeadDim;
  return config;
}

/// Steps of `chunk` tokens, a divisor of kLength, until the cache holds kLength in each sequence.
template <class Layer, class Cache, class M>
void expect_steps_in_one_workspace(const char* name, const Layer& layer, Cache cache, Index chunk,
                                   const M& mask, Executor* executor = nullptr) {
  SCOPED_TRACE(::testing::Message() << name << ", " << chunk << " at a time");
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  TestTensor<float> x({cache.batch(), 1, chunk, kModel}), out(x.shape());
  x.fill_uniform(1);
  AttentionOptions options;
  options.executor = executor;
  std::vector<char> memory(layer.step_workspace_bytes(x.view(), cache, mask, options));
  options.workspace = {memory.data(), memory.size()};
  allocations().reset();
  for (Index length = 0; length < kLength; length += chunk) {
    layer.step(x.view(), cache, out.view(), mask, options, &rotary);
    if (allocations().count.load() != 0) {
      ADD_FAILURE() << "an allocation at length " << length;
      return;
    }
  }
  EXPECT_EQ(cache.length(0), kLength);
  // The other passes need no more.
  layer.attend(x.view(), cache, out.view(), mask, options, &rotary);
  cache.reset();
  layer.append(x.view(), x.view(), cache, options, &rotary);
  EXPECT_EQ(allocations().count.load(), 0u);
}

template <class Layer>
void expect_every_cache(const char* name, const Layer& layer, Index chunk,
                        Executor* executor = nullptr) {
  SCOPED_TRACE(name);
  const Index heads = layer.config().num_kv_heads;
  expect_steps_in_one_workspace("contiguous", layer,
                                KeyValueCache<float>(2, heads, kLength, kHeadDim), chunk, causal(),
                                executor);
  expect_steps_in_one_workspace("16 bits", layer,
                                KeyValueCache<Eigen::half>(2, heads, kLength, kHeadDim), chunk,
                                no_mask(), executor);
  expect_steps_in_one_workspace(
      "rolling", layer, RollingKeyValueCache<float>(2, heads, 300, kHeadDim, kHeadDim, chunk),
      chunk, causal(), executor);
  expect_steps_in_one_workspace(
      "paged", layer, PagedKeyValueCache<float>(2 * (kLength / 16 + 1), 16, 2, heads, kHeadDim),
      chunk, causal(), executor);
}

TEST(StepWorkspace, OfGroupedQueriesServesEveryLength) {
  const GroupedQueryAttention<float> layer(sizes(2), 1);
  for (const Index chunk : {1, 40}) expect_every_cache("GroupedQueryAttention", layer, chunk);
}

TEST(StepWorkspace, OfManyHeadsServesEveryLength) {
  const MultiHeadAttention<float> layer(sizes(4), 1);
  expect_every_cache("MultiHeadAttention", layer, 1);
}

TEST(StepWorkspace, OfOneHeadServesEveryLength) {
  const MultiQueryAttention<float> layer(sizes(1), 1);
  expect_every_cache("MultiQueryAttention", layer, 1);
}

// 24 rows take another form of tile up to 128 keys than beyond, and a ring's stream goes through
// both whatever its window.
TEST(StepWorkspace, OfShortWindowsServesEveryLength) {
  AttentionConfig config;
  config.model_dim = kModel;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = kHeadDim;
  const GroupedQueryAttention<float> layer(config, 1);
  for (const Index window : {1, 52, 100, 130}) {
    expect_steps_in_one_workspace("rolling", layer,
                                  RollingKeyValueCache<float>(2, 1, window, kHeadDim, kHeadDim, 8),
                                  8, causal());
  }
}

TEST(StepWorkspace, OfManyThreadsServesEveryLength) {
  ThreadPool pool(3);
  const GroupedQueryAttention<float> layer(sizes(2), 1);
  expect_every_cache("GroupedQueryAttention", layer, 8, &pool);
}

}  // namespace
}  // namespace test
}  // namespace attn

// Calls over caches: positions, memory, executors, threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/mask.hpp"
#include "attn/thread_pool.hpp"
#include "kv_cache_test/cache.hpp"
#include "support/allocations.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

TEST(KeyValueCache, PositionsFollowTheLengthUnlessTheCallSaysOtherwise) {
  KeyValueCache<float> cache(2, 1, 8, 1);
  TestTensor<float> k({2, 1, 8, 1}), v({2, 1, 8, 1});
  k.fill_uniform(3);
  v.fill([](Index, Index, Index j, Index) { return std::exp2(j); });
  const std::vector<Index> lengths = {5, 8};
  cache.append(k.view(), v.view());
  cache.truncate(lengths);
  TestTensor<float> q({2, 1, 2, 1});
  q.fill_value(0);
  const auto rows = [&](const AnyMask& mask, const AttentionOptions& options = {}) {
    const auto out = scaled_dot_product_attention(q.view(), cache, mask, options).output;
    return std::vector<float>{out(0, 0, 0, 0), out(0, 0, 1, 0), out(1, 0, 0, 0), out(1, 0, 1, 0)};
  };
  const auto mean = [](int n) {
    return (std::exp2(static_cast<float>(n)) - 1) / static_cast<float>(n);
  };
  const std::vector<float> at_the_end = {mean(4), mean(5), mean(7), mean(8)};
  const auto expect_rows = [&](const std::vector<float>& actual, const std::vector<float>& right) {
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_FLOAT_EQ(actual[i], right[i]) << i;
  };
  expect_rows(rows(causal()), at_the_end);
  expect_rows(rows(causal_bottom_right()), at_the_end);
  expect_rows(rows(causal_from(PerBatch(cache.lengths()) - 2)), at_the_end);
  expect_rows(rows(causal_top_left()), {mean(1), mean(2), mean(1), mean(2)});
  AttentionOptions options;
  options.query_offset = 2;
  expect_rows(rows(causal(), options), {mean(3), mean(4), mean(3), mean(4)});
  EXPECT_EQ(message_of<OptionError>([&] { rows(causal_bottom_right(), options); }),
            "scaled_dot_product_attention: causal_bottom_right() and options.query_offset give "
            "different positions to the queries; got q [2, 1, 2, 1], k [2, 1, 8, 1], "
            "v [2, 1, 8, 1], out [2, 1, 2, 1]");
  // key_lengths narrows what is seen, and moves nobody.
  const std::vector<Index> valid = {2, 8};
  expect_rows(rows(causal() & key_lengths(valid)), {mean(2), mean(2), mean(7), mean(8)});
}

TEST(KeyValueCache, SixteenBitStorageIsReadInPlace) {
  // A gather or a conversion of the whole cache would be seen as an allocation that grows with it.
  const auto q = queries(1, 4, 1, 64);
  const auto bytes_of_a_call = [&](const auto& cache) {
    TestTensor<float> out({1, 4, 1, 64});
    allocations().reset();
    scaled_dot_product_attention(q.view(), cache, out.view(), causal());
    return allocations().bytes.load();
  };
  const auto bytes_at = [&](Index length) {
    const CachedTokens<Eigen::bfloat16> tokens({length}, 1, 64, 64);
    KeyValueCache<Eigen::bfloat16> contiguous(1, 1, length, 64);
    PagedKeyValueCache<Eigen::bfloat16> paged(length, 1, 1, 1, 64);
    tokens.feed(contiguous, length);
    tokens.feed(paged, length);
    return (std::max)(bytes_of_a_call(contiguous), bytes_of_a_call(paged));
  };
  const std::size_t few = bytes_at(512);
  EXPECT_EQ(bytes_at(4096), few);
}

TEST(KeyValueCache, CallsWithAWorkspaceAllocateNothing) {
  const CachedTokens<float> tokens({60, 12}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> contiguous(2, kHeads, 64, kKeyDim, kValueDim);
  RollingKeyValueCache<float> rolling(2, kHeads, 9, kKeyDim, kValueDim, 16);
  PagedKeyValueCache<float> paged(32, 4, 2, kHeads, kKeyDim, kValueDim);
  const auto q = queries(2, kQueryHeads, 1, kKeyDim);
  TestTensor<float> out({2, kQueryHeads, 1, kValueDim}), k({2, kHeads, 1, kKeyDim}),
      v({2, kHeads, 1, kValueDim});
  k.fill_uniform(5);
  v.fill_uniform(6);
  const auto step = [&](auto& cache) {
    std::vector<char> memory(attention_workspace_bytes(q.view(), cache, causal()));
    AttentionOptions options;
    options.workspace = {memory.data(), memory.size()};
    allocations().reset();
    for (int token = 0; token < 3; ++token) {
      cache.append(k.view(), v.view());
      scaled_dot_product_attention(q.view(), cache, out.view(), causal(), options);
    }
    EXPECT_EQ(allocations().count.load(), 0u);
  };
  tokens.feed(contiguous, 16);
  step(contiguous);
  tokens.feed(rolling, 16);
  step(rolling);
  // A new page needs a longer page table from time to time; here there is room left.
  tokens.feed(paged, 16);
  paged.append(k.view(), v.view());
  step(paged);
}

TEST(KeyValueCache, BitsDoNotDependOnExecutorsOrBatches) {
  const CachedTokens<float> tokens({9000, 9000, 9000}, 2, 8, 8);
  KeyValueCache<float> cache(3, 2, 9000, 8);
  tokens.feed(cache, 3000);
  const auto q = queries(3, 4, 1, 8);
  const auto serial = scaled_dot_product_attention(q.view(), cache, causal());
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    AttentionOptions options;
    options.executor = &pool;
    const auto parallel = scaled_dot_product_attention(q.view(), cache, causal(), options);
    EXPECT_TRUE(same_bits(parallel.output.view(), serial.output.view()));
  }
  for (Index b = 0; b < 3; ++b) {
    KeyValueCache<float> alone(1, 2, 9000, 8);
    alone.append(tokens.k.view().slice_batch(b, 1), tokens.v.view().slice_batch(b, 1));
    const auto one = scaled_dot_product_attention(q.view().slice_batch(b, 1), alone, causal());
    EXPECT_TRUE(same_bits(one.output.view(), serial.output.view().slice_batch(b, 1)));
  }
}

TEST(KeyValueCache, ManyThreadsAttendToOneConstCache) {
  const CachedTokens<float> tokens({50, 20}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> filled(2, kHeads, 64, kKeyDim, kValueDim);
  tokens.feed(filled, 50);
  const KeyValueCache<float>& cache = filled;
  std::vector<std::thread> threads;
  for (Index caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&cache, caller] {
      const auto q = queries(2, kQueryHeads, 1 + caller, kKeyDim);
      const auto first = scaled_dot_product_attention(q.view(), cache, causal());
      for (int call = 0; call < 50; ++call) {
        const auto again = scaled_dot_product_attention(q.view(), cache, causal());
        EXPECT_TRUE(same_bits(again.output.view(), first.output.view()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace test
}  // namespace attn

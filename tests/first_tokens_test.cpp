// Rolling caches that keep the first tokens of their streams for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/ragged.hpp"
#include "attn/thread_pool.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

CacheShape shape_of(Index batch, Index first_tokens, Index window, Index longest_append) {
  CacheShape shape;
  shape.batch = batch;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kKeyDim;
  shape.value_dim = kValueDim;
  shape.window = window;
  shape.longest_append = longest_append;
  shape.first_tokens = first_tokens;
  return shape;
}

TestTensor<float> queries(Index batch, Index length) {
  TestTensor<float> q({batch, kQueryHeads, length, kKeyDim});
  q.fill_uniform(3, 3);
  return q;
}

/// The first `count` tokens of each sequence.
CachedTokens<float> begin_of(const CachedTokens<float>& tokens, Index count) {
  std::vector<Index> lengths;
  for (const Index length : tokens.lengths) lengths.push_back((std::min)(length, count));
  CachedTokens<float> result(lengths, kHeads, kKeyDim, kValueDim);
  result.k.fill([&](Index b, Index h, Index i, Index d) { return tokens.k(b, h, i, d); });
  result.v.fill([&](Index b, Index h, Index i, Index d) { return tokens.v(b, h, i, d); });
  return result;
}

auto seen(Index first_tokens, Index window) {
  return sliding_window(window - 1, kUnlimited) | first_keys(first_tokens);
}

// After every append, whatever its size, the bits are those of all tokens so far: as long as
// nothing has been let go, while the first tokens lie within the window, and for ever after.
TEST(FirstTokens, HaveTheBitsOfAllTokensUnderTheUnion) {
  const CachedTokens<float> tokens({70, 70}, kHeads, kKeyDim, kValueDim);
  for (const Index first : {1, 4, 9}) {
    for (const Index window : {1, 2, 8, 31}) {
      for (const Index chunk : {1, 5, 20}) {
        for (const Index longest_append : {Index{1}, Index{4}, chunk}) {
          SCOPED_TRACE(::testing::Message()
                       << "first " << first << ", window " << window << ", chunk " << chunk
                       << ", longest append " << longest_append);
          RollingKeyValueCache<float> cache(shape_of(2, first, window, longest_append));
          while (cache.length(0) + chunk <= 70) {
            const Index length = cache.length(0);
            cache.append(tokens.k.view().slice_length(length, chunk),
                         tokens.v.view().slice_length(length, chunk));
            expect_bits_of_tensors<float>(cache, begin_of(tokens, length + chunk),
                                          queries(2, chunk), causal(),
                                          causal() & seen(first, window));
          }
          EXPECT_EQ(cache.ring(), window + (std::max)(longest_append, chunk) - 1);
          EXPECT_EQ(cache.held_capacity(), first + cache.ring());
          EXPECT_EQ(cache.num_held(0), (std::min)(cache.length(0), cache.held_capacity()));
        }
      }
    }
  }
}

TEST(FirstTokens, MasksAndBiasesSeePositionsOfTheStream) {
  const CachedTokens<float> tokens({43, 2, 21}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(3, 3, 10, 4));
  tokens.feed(cache, 4);
  TestTensor<float> bias({1, 1, 1, 43});
  bias.fill_uniform(4);
  for (const AnyMask& mask :
       {AnyMask(), AnyMask(alibi()), AnyMask(causal() & sliding_window(4, 1)),
        AnyMask(add_bias(bias.view())), AnyMask(causal() & (sliding_window(5, 0) | first_keys(2))),
        AnyMask(keep_if([](const ScorePosition& at) { return at.key % 3 != 0; }))}) {
    expect_bits_of_tensors<float>(cache, tokens, queries(3, 2), mask, mask & seen(3, 10));
  }
  // The same sequences, packed.
  const std::vector<Index> starts = {0, 2, 4, 6};
  const auto q = queries(3, 2);
  TestTensor<float> packed({1, kQueryHeads, 6, kKeyDim}), out({1, kQueryHeads, 6, kValueDim});
  packed.fill([&](Index, Index h, Index i, Index d) { return q(i / 2, h, i % 2, d); });
  ragged_attention(packed.view(), cache, out.view(), starts, causal());
  const auto expected = scaled_dot_product_attention(q.view(), cache, causal());
  for_each_index(out.shape(), [&](Index, Index h, Index i, Index d) {
    EXPECT_TRUE(same_bits(out(0, h, i, d), expected.output(i / 2, h, i % 2, d)));
  });
}

// The first tokens lie in the first splits of the keys, the window in the last ones, and there is
// no work for those between.
TEST(FirstTokens, LieInSplitsOfTheirOwn) {
  for (const Index first : {5, 5000}) {
    CacheShape shape = shape_of(1, first, 300, 64);
    shape.head_dim = shape.value_dim.emplace(4);
    RollingKeyValueCache<float> cache(shape);
    const CachedTokens<float> tokens({20000}, kHeads, 4, 4);
    tokens.feed(cache, 64);
    TestTensor<float> q({1, kQueryHeads, 1, 4}), out(q.shape()), expected(q.shape());
    q.fill_uniform(3);
    AttentionOptions at_the_end;
    at_the_end.query_offset = 19999;
    scaled_dot_product_attention(q.view(), tokens.k.view(), tokens.v.view(), expected.view(),
                                 causal() & seen(first, 300), at_the_end);
    ThreadPool pool(2);
    for (Executor* const executor :
         {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
      AttentionOptions options;
      options.executor = executor;
      scaled_dot_product_attention(q.view(), cache, out.view(), causal(), options);
      EXPECT_TRUE(same_bits(out.view(), expected.view()));
    }
  }
}

TEST(FirstTokens, EndlessSequencesNeedNoMoreScratch) {
  for (const Index first : {4, 5000}) {
    CacheShape shape = shape_of(1, first, 16, 16);
    shape.num_kv_heads = 1;
    shape.head_dim = shape.value_dim.emplace(1);
    RollingKeyValueCache<float> cache(shape);
    TestTensor<float> token({1, 1, 16, 1}), out({1, 1, 1, 1});
    token.fill_uniform(2);
    const std::vector<float> zero = {0};
    const Tensor4<const float> q(zero.data(), {1, 1, 1, 1});
    const std::size_t bytes = attention_workspace_bytes(q, cache, causal());
    std::vector<char> memory(bytes);
    AttentionOptions options;
    options.workspace = {memory.data(), bytes};
    for (int round = 0; round < 3000; ++round) {
      cache.append(token.view(), token.view());
      EXPECT_EQ(attention_workspace_bytes(q, cache, causal()), bytes);
      ASSERT_NO_THROW(scaled_dot_product_attention(q, cache, out.view(), causal(), options));
    }
    EXPECT_EQ(cache.length(0), 48000);
  }
}

TEST(FirstTokens, AreTakenBackLast) {
  const CachedTokens<float> tokens({30, 30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(2, 3, 8, 4));
  tokens.feed(cache, 3);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(26); }),
            "RollingKeyValueCache::truncate: sequence 0 of 30 tokens cannot be cut to 26: the "
            "window of 8 tokens would reach back behind token 19, the first that is kept (a larger "
            "longest_append keeps more)");
  cache.truncate(27);
  expect_bits_of_tensors<float>(cache, begin_of(tokens, 27), queries(2, 1), causal(),
                                causal() & seen(3, 8));
  tokens.feed(cache, 2);
  expect_bits_of_tensors<float>(cache, tokens, queries(2, 2), causal(), causal() & seen(3, 8));
  // Of the first tokens alone any number may stay.
  cache.truncate(2);
  EXPECT_EQ(cache.first_held(0), 0);
  expect_bits_of_tensors<float>(cache, begin_of(tokens, 2), queries(2, 1), causal(), causal());
  tokens.feed(cache, 4);
  expect_bits_of_tensors<float>(cache, tokens, queries(2, 1), causal(), causal() & seen(3, 8));
}

TEST(FirstTokens, GoWithTheirSequences) {
  const CachedTokens<float> tokens({40, 2, 14, 21}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(4, 3, 8, 4));
  tokens.feed(cache, 4);
  const std::vector<Index> kParents[] = {{1, 2, 3, 0}, {3, 0, 1, 1}};
  for (const std::vector<Index>& parents : kParents) {
    RollingKeyValueCache<float> moved(cache);
    moved.reorder(parents);
    const auto parent = [&](Index b) { return parents[static_cast<std::size_t>(b)]; };
    CachedTokens<float> expected({tokens.length(parent(0)), tokens.length(parent(1)),
                                  tokens.length(parent(2)), tokens.length(parent(3))},
                                 kHeads, kKeyDim, kValueDim);
    expected.k.fill(
        [&](Index b, Index h, Index i, Index d) { return tokens.k(parent(b), h, i, d); });
    expected.v.fill(
        [&](Index b, Index h, Index i, Index d) { return tokens.v(parent(b), h, i, d); });
    expect_bits_of_tensors<float>(moved, expected, queries(4, 1), causal(), causal() & seen(3, 8));
  }
}

TEST(FirstTokens, AreSavedInFrontOfTheOthers) {
  const CachedTokens<float> tokens({40, 2, 12, 21}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(4, 3, 8, 4)), other(shape_of(4, 3, 8, 4));
  tokens.feed(cache, 4);
  TestTensor<float> k({4, kHeads, cache.longest_held(), kKeyDim});
  TestTensor<float> v({4, kHeads, cache.longest_held(), kValueDim});
  EXPECT_EQ(cache.longest_held(), 14);
  cache.save(k.view(), v.view());
  EXPECT_EQ(k(0, 1, 2, 3), tokens.k(0, 1, 2, 3));
  EXPECT_EQ(k(0, 1, 3, 3), tokens.k(0, 1, 29, 3));
  other.restore(cache.lengths(), k.view(), v.view());
  for (Index b = 0; b < 4; ++b) EXPECT_EQ(other.first_held(b), cache.first_held(b));
  expect_bits_of_tensors<float>(other, tokens, queries(4, 1), causal(), causal() & seen(3, 8));
  const CachedTokens<float> more({5, 5, 5, 5}, kHeads, kKeyDim, kValueDim, 7);
  for (Index i = 0; i < 5; ++i) {
    for (RollingKeyValueCache<float>* each : {&cache, &other}) {
      each->append(more.k.view().slice_length(i, 1), more.v.view().slice_length(i, 1));
    }
    const auto q = queries(4, 1);
    EXPECT_TRUE(same_bits(scaled_dot_product_attention(q.view(), cache, causal()).output.view(),
                          scaled_dot_product_attention(q.view(), other, causal()).output.view()));
  }
  TestTensor<float> few_k({4, kHeads, 10, kKeyDim}), few_v({4, kHeads, 10, kValueDim});
  EXPECT_EQ(
      message_of<ShapeError>([&] { other.restore(100, few_k.view(), few_v.view()); }).substr(0, 96),
      "RollingKeyValueCache::restore: sequence 0 of 100 tokens needs between 11 and 100 of "
      "them, got 10");
}

TEST(FirstTokens, StayWhereTokensAreDropped) {
  const CachedTokens<float> tokens({40, 40}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(2, 3, 8, 4));
  tokens.feed(cache, 4);
  std::vector<Index> kept = {0, 1, 2};
  for (Index t = 29; t < 40; ++t) {
    if (t != 37) kept.push_back(t);
  }
  cache.keep_tokens(1, kept);
  CachedTokens<float> expected({40, 39}, kHeads, kKeyDim, kValueDim);
  const auto old = [](Index b, Index i) {
    return b == 1 && i >= 37 ? (std::min)(i + 1, Index{39}) : i;
  };
  expected.k.fill([&](Index b, Index h, Index i, Index d) { return tokens.k(b, h, old(b, i), d); });
  expected.v.fill([&](Index b, Index h, Index i, Index d) { return tokens.v(b, h, old(b, i), d); });
  expect_bits_of_tensors<float>(cache, expected, queries(2, 1), causal(), causal() & seen(3, 8));
}

TEST(FirstTokens, BelongToRollingCaches) {
  EXPECT_EQ(
      message_of<ShapeError>([] { RollingKeyValueCache<float> cache(shape_of(1, -1, 4, 1)); }),
      "RollingKeyValueCache: a size must not be negative; got batch 1, num_kv_heads 2, "
      "head_dim 7, value_dim 5, window 4, longest_append 1, first_tokens -1");
  CacheShape contiguous = shape_of(1, 4, 0, 1), paged = contiguous, huge = shape_of(1, 4, 1, 1);
  contiguous.capacity = 8;
  paged.num_pages = paged.page_length = 4;
  huge.first_tokens = kUnlimited;
  EXPECT_THROW(KeyValueCache<float> cache(contiguous), ShapeError);
  EXPECT_THROW(PagedKeyValueCache<float> cache(paged), ShapeError);
  EXPECT_NE(
      message_of<ShapeError>([&] { RollingKeyValueCache<float> cache(huge); }).find("too large"),
      std::string::npos);
}

TEST(FirstTokens, QueriesThatSeeWhatIsGoneAreRefused) {
  const CachedTokens<float> tokens({30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(shape_of(1, 3, 7, 1));
  for (Index i = 0; i < 30; ++i) {
    cache.append(tokens.k.view().slice_length(i, 1), tokens.v.view().slice_length(i, 1));
  }
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        scaled_dot_product_attention(queries(1, 2).view(), cache, causal());
      }).substr(0, 128),
      "scaled_dot_product_attention: query 0 of batch 0, at position 28, sees key 22, and the "
      "cache holds none before 23: it keeps the ");
}

}  // namespace
}  // namespace test
}  // namespace attn

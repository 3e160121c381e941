#include "attn/caches/rolling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/executor.hpp"
#include "attn/kv_cache.hpp"
#include "attn/thread_pool.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

TestTensor<float> queries(Index batch, Index length, std::uint64_t seed = 3) {
  TestTensor<float> q({batch, kQueryHeads, length, kKeyDim});
  q.fill_uniform(seed, 3);
  return q;
}

/// The next `count` tokens of all sequences.
template <class Cache>
void append_next(Cache& cache, const CachedTokens<float>& tokens, Index count) {
  const Index first = cache.length(0);
  cache.append(tokens.k.view().slice_length(first, count),
               tokens.v.view().slice_length(first, count));
}

/// The first tokens alone.
CachedTokens<float> first_tokens(const CachedTokens<float>& tokens, Index count) {
  CachedTokens<float> first(std::vector<Index>(tokens.lengths.size(), count), kHeads, kKeyDim,
                            kValueDim);
  first.k.fill([&](Index b, Index h, Index i, Index d) { return tokens.k(b, h, i, d); });
  first.v.fill([&](Index b, Index h, Index i, Index d) { return tokens.v(b, h, i, d); });
  return first;
}

// After every append, whatever its size, the cache has the bits of all tokens so far under the
// window: it wraps at every place, and holds what the first query of a chunk needs.
TEST(RollingKeyValueCache, HasTheBitsOfAllTokensUnderTheWindow) {
  const CachedTokens<float> tokens({75, 75}, kHeads, kKeyDim, kValueDim);
  for (const Index window : {1, 2, 8, 31}) {
    for (const Index chunk : {1, 2, 5, 8, 20}) {
      for (const Index longest_append : {Index{1}, Index{4}, chunk}) {
        SCOPED_TRACE("window " + std::to_string(window) + ", chunk " + std::to_string(chunk) +
                     ", longest append " + std::to_string(longest_append));
        RollingKeyValueCache<float> cache(2, kHeads, window, kKeyDim, kValueDim, longest_append);
        while (cache.length(0) + chunk <= 75) {
          append_next(cache, tokens, chunk);
          const auto held = first_tokens(tokens, cache.length(0));
          const auto q = queries(2, chunk);
          expect_bits_of_tensors<float>(cache, held, q, causal(),
                                        causal() & sliding_window(window - 1, kUnlimited));
        }
        EXPECT_EQ(cache.ring(), window + (std::max)(longest_append, chunk) - 1);
      }
    }
  }
}

TEST(RollingKeyValueCache, MasksAndBiasesSeeAbsolutePositions) {
  const CachedTokens<float> tokens({43, 43}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 10, kKeyDim, kValueDim, 3);
  while (cache.length(0) < 42) append_next(cache, tokens, 3);
  append_next(cache, tokens, 1);
  TestTensor<float> bias({1, 1, 1, 43});
  bias.fill_uniform(4);
  const auto window = sliding_window(9, kUnlimited);
  const auto q = queries(2, 3);
  for (const AnyMask& mask :
       {AnyMask(), AnyMask(alibi()), AnyMask(sliding_window(4, 1)), AnyMask(add_bias(bias.view())),
        AnyMask(keep_if([](const ScorePosition& at) { return at.key % 3 != 0; }))}) {
    expect_bits_of_tensors<float>(cache, tokens, q, mask, mask & window);
  }
}

TEST(RollingKeyValueCache, SequencesRollByThemselves) {
  const CachedTokens<float> tokens({40, 3, 21}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(3, kHeads, 8, kKeyDim, kValueDim, 4);
  tokens.feed(cache, 4);
  EXPECT_EQ(cache.first_held(0), 40 - 11);
  EXPECT_EQ(cache.first_held(1), 0);
  EXPECT_EQ(cache.first_held(2), 21 - 11);
  const auto q = queries(3, 2);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(),
                                causal() & sliding_window(7, kUnlimited));
  cache.reset(0);
  EXPECT_EQ(cache.first_held(0), 0);
  TestTensor<float> k({1, kHeads, 2, kKeyDim}), v({1, kHeads, 2, kValueDim});
  k.fill_uniform(8);
  v.fill_uniform(9);
  cache.append_to(0, k.view(), v.view());
  EXPECT_EQ(cache.length(0), 2);
  EXPECT_EQ(cache.length(2), 21);
}

// A sequence may go on for ever: its past costs nothing.
TEST(RollingKeyValueCache, EndlessSequencesNeedNoMoreScratch) {
  RollingKeyValueCache<float> cache(1, 1, 16, 1);
  TestTensor<float> token({1, 1, 16, 1});
  token.fill_uniform(2);
  const std::vector<float> zero = {0};
  const Tensor4<const float> q(zero.data(), {1, 1, 1, 1});
  // The window may lie on both sides of a split of 4096 keys, and never on more.
  std::size_t most_early = 0, most = 0;
  for (int round = 0; round < 3000; ++round) {
    cache.append(token.view(), token.view());
    most = (std::max)(most, attention_workspace_bytes(q, cache, causal()));
    if (round == 300) most_early = most;
  }
  EXPECT_EQ(cache.length(0), 48000);
  EXPECT_EQ(most, most_early);
  const auto result = scaled_dot_product_attention(q, cache, causal(), {}, Want::log_sum_exp);
  EXPECT_NEAR(result.log_sum_exp(0, 0, 0, 0), std::log(16.0), 1e-6);
  ThreadPool pool(2);
  AttentionOptions options;
  options.executor = &pool;
  const auto parallel = scaled_dot_product_attention(q, cache, causal(), options);
  EXPECT_TRUE(same_bits(parallel.output.view(), result.output.view()));
}

TEST(RollingKeyValueCache, SinksJoinOnceWherePastSplitsAreLeftOut) {
  RollingKeyValueCache<float> cache(1, 1, 200, 1);
  TestTensor<float> token({1, 1, 8300, 1});
  token.fill_value(1);
  cache.append(token.view(), token.view());  // 8192 is the end of a split
  const std::vector<float> zero = {0};
  const std::vector<double> sinks = {std::log(200.0)};
  AttentionOptions options;
  options.sinks = sinks;
  const auto result = scaled_dot_product_attention(Tensor4<const float>(zero.data(), {1, 1, 1, 1}),
                                                   cache, causal(), options, Want::weights);
  EXPECT_NEAR(result.output(0, 0, 0, 0), 0.5, 1e-6);
  for (Index j = 0; j < 8300; ++j) {
    EXPECT_NEAR(result.weights(0, 0, 0, j), j < 8100 ? 0 : 1.0 / 400, 1e-8) << j;
  }
}

TEST(RollingKeyValueCache, TakesBackWhatItStillHolds) {
  const CachedTokens<float> tokens({30, 30}, kHeads, kKeyDim, kValueDim);
  const CachedTokens<float> others({30, 30}, kHeads, kKeyDim, kValueDim, 5);
  RollingKeyValueCache<float> cache(2, kHeads, 8, kKeyDim, kValueDim, 4);
  while (cache.length(0) < 18) append_next(cache, tokens, 3);
  append_next(cache, others, 3);  // a guess
  cache.truncate(18);
  expect_bits_of_tensors<float>(cache, first_tokens(tokens, 18), queries(2, 1), causal(),
                                causal() & sliding_window(7, kUnlimited));
  append_next(cache, tokens, 4);  // what was right
  expect_bits_of_tensors<float>(cache, first_tokens(tokens, 22), queries(2, 4), causal(),
                                causal() & sliding_window(7, kUnlimited));
}

TEST(RollingKeyValueCache, RefusesACutThatNeedsEvictedTokensAndChangesNothing) {
  const CachedTokens<float> tokens({30, 30}, kHeads, kKeyDim, kValueDim);
  const auto q = queries(2, 1);
  for (const Index chunk : {1, 10}) {  // 10: the ring grows, which does not make more tokens kept
    RollingKeyValueCache<float> cache(2, kHeads, 8, kKeyDim, kValueDim, 4);
    while (cache.length(0) < 20) append_next(cache, tokens, chunk);
    const auto before = scaled_dot_product_attention(q.view(), cache, causal());
    EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(16); }),
              "RollingKeyValueCache::truncate: sequence 0 of 20 tokens cannot be cut to 16: the "
              "window of 8 tokens would reach back behind token 9, the first that is kept (a "
              "larger longest_append keeps more)");
    EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(21); }),
              "RollingKeyValueCache::truncate: sequence 0 holds 20 tokens and cannot be cut to 21");
    const std::vector<Index> second = {20, 1};
    EXPECT_EQ(
        message_of<ShapeError>([&] { cache.truncate(second); }).substr(0, 83),
        "RollingKeyValueCache::truncate: sequence 1 of 20 tokens cannot be cut to 1: the win");
    EXPECT_EQ(cache.length(0), 20);
    EXPECT_EQ(cache.length(1), 20);
    const auto after = scaled_dot_product_attention(q.view(), cache, causal());
    EXPECT_TRUE(same_bits(after.output.view(), before.output.view()));
    cache.truncate(17);
    // Tokens 9 .. 16 are left, and no older ones come back.
    EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(16); }).substr(0, 78),
              "RollingKeyValueCache::truncate: sequence 0 of 17 tokens cannot be cut to 16: t");
    cache.truncate(0);
    append_next(cache, tokens, 2);
    expect_bits_of_tensors<float>(cache, first_tokens(tokens, 2), q, causal(), causal());
  }
}

// A window that is held in part only would be a wrong answer.
TEST(RollingKeyValueCache, RefusesQueriesThatSeeEvictedTokens) {
  const CachedTokens<float> tokens({30, 30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 7, kKeyDim, kValueDim);
  while (cache.length(0) < 30) append_next(cache, tokens, 1);
  cache.reset(0);  // nothing of sequence 0 is missing
  const auto q = queries(2, 3);
  TestTensor<float> out({2, kQueryHeads, 3, kValueDim});
  out.fill_value(5);
  const TestTensor<float> before = out;
  EXPECT_EQ(message_of<ShapeError>(
                [&] { scaled_dot_product_attention(q.view(), cache, out.view(), causal()); }),
            "scaled_dot_product_attention: query 0 of batch 1, at position 27, sees key 21, and "
            "the cache holds none before 23: it keeps the windows of its last longest_append "
            "tokens, and no query may stand further back unless its mask hides what is missing; "
            "got q [2, 4, 3, 7], k [2, 2, 30, 7], v [2, 2, 30, 5], out [2, 4, 3, 5]");
  EXPECT_TRUE(same_bits(out.view(), before.view()));
  // A position of its own may stand before them too.
  AttentionOptions options;
  options.query_offset = 26;
  const auto q1 = queries(2, 1);
  const auto call_at = [&](Index position) {
    options.query_offset = position;
    scaled_dot_product_attention(q1.view(), cache, no_mask(), options);
  };
  EXPECT_THROW(call_at(28), ShapeError);
  EXPECT_NO_THROW(call_at(29));
  EXPECT_NO_THROW(call_at(60));
}

TEST(RollingKeyValueCache, AcceptsQueriesWhoseMaskHidesTheEvictedTokens) {
  const CachedTokens<float> tokens({30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(1, kHeads, 7, kKeyDim, kValueDim);
  while (cache.length(0) < 30) append_next(cache, tokens, 1);
  const auto q = queries(1, 3);
  TestTensor<bool> newest({1, 1, 1, 30}), of_some_heads({1, kQueryHeads, 1, 30});
  newest.fill([](Index, Index, Index, Index key) { return key >= 23; });
  of_some_heads.fill([](Index, Index head, Index, Index key) { return key >= 23 || head == 3; });
  const auto window = sliding_window(6, kUnlimited);
  for (const AnyMask& mask :
       {AnyMask(causal() & sliding_window(4, 0)), AnyMask(causal() & keep_where(newest.view())),
        AnyMask(keep_if([](const ScorePosition& at) { return at.key > 22; }))}) {
    expect_bits_of_tensors<float>(cache, tokens, q, mask, mask & window);
  }
  for (const AnyMask& mask :
       {AnyMask(sliding_window(5, 0)), AnyMask(keep_where(of_some_heads.view())), AnyMask(alibi()),
        AnyMask(keep_if([](const ScorePosition& at) { return at.key > 21; }))}) {
    EXPECT_THROW(scaled_dot_product_attention(q.view(), cache, mask), ShapeError);
  }
}

// So that a later chunk can be attended to again, as by a layer that shares keys and values.
TEST(RollingKeyValueCache, HoldsTheWindowsOfTheWholeLastAppend) {
  const CachedTokens<float> tokens({30, 30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 7, kKeyDim, kValueDim);
  while (cache.length(0) < 20) append_next(cache, tokens, 1);
  append_next(cache, tokens, 10);
  expect_bits_of_tensors<float>(cache, tokens, queries(2, 10), causal(),
                                causal() & sliding_window(6, kUnlimited));
  EXPECT_THROW(scaled_dot_product_attention(queries(2, 11).view(), cache, causal()), ShapeError);
}

// One sequence that all batches share.
TEST(RollingKeyValueCache, RefusesQueriesOfEveryBatchOfASharedSequence) {
  const CachedTokens<float> tokens({30}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(1, kHeads, 7, kKeyDim, kValueDim);
  while (cache.length(0) < 30) append_next(cache, tokens, 1);
  const auto q = queries(3, 1);
  AttentionOptions options;
  const std::vector<Index> positions = {29, 31, 28};
  options.query_offset = positions;
  EXPECT_EQ(message_of<ShapeError>([&] {
              scaled_dot_product_attention(q.view(), cache, no_mask(), options);
            }).substr(0, 72),
            "scaled_dot_product_attention: query 0 of batch 2, at position 28, sees k");
}

TEST(RollingKeyValueCache, RefusesTokensThatDoNotFitAndChangesNothing) {
  const CachedTokens<float> tokens({6, 6}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 4, kKeyDim, kValueDim);
  append_next(cache, tokens, 6);
  const RollingKeyValueCache<float> before = cache;
  TestTensor<float> k({2, kHeads, 20, kKeyDim}), v({2, kHeads, 20, kKeyDim});
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append(k.view(), v.view()); }),
            "RollingKeyValueCache::append: k and v must have the dims of the cache; got cached "
            "keys [2, 2, 9, 7], cached values [2, 2, 9, 5], k [2, 2, 20, 7], v [2, 2, 20, 7]");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append_to(2, k.view(), v.view()); }),
            "RollingKeyValueCache::append_to: there is no sequence 2 among the 2 of the cache");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.reset(-1); }),
            "RollingKeyValueCache::reset: there is no sequence -1 among the 2 of the cache");
  EXPECT_EQ(cache.length(0), 6);
  EXPECT_TRUE(same_bits(cache.keys(), before.keys()));
  EXPECT_TRUE(same_bits(cache.values(), before.values()));
}

TEST(RollingKeyValueCache, RefusesWindowsThatAreNone) {
  EXPECT_EQ(
      message_of<ShapeError>([] { RollingKeyValueCache<float>(1, 1, 0, 4); }),
      "RollingKeyValueCache: takes a window and a longest_append of 1 or more, and no capacity "
      "or pages; got batch 1, num_kv_heads 1, head_dim 4, value_dim 4, window 0, "
      "longest_append 1, num_pages 0, page_length 0");
  EXPECT_EQ(
      message_of<ShapeError>([] { RollingKeyValueCache<float>(1, 1, 4, 4, 4, 0); }),
      "RollingKeyValueCache: takes a window and a longest_append of 1 or more, and no capacity "
      "or pages; got batch 1, num_kv_heads 1, head_dim 4, value_dim 4, window 4, "
      "longest_append 0");
  EXPECT_NE(message_of<ShapeError>([] {
              RollingKeyValueCache<float>(1, 1, kUnlimited, 4);
            }).find("too large"),
            std::string::npos);
  EXPECT_EQ(message_of<ShapeError>([] { RollingKeyValueCache<float>(-1, 1, 4, 4); }),
            "RollingKeyValueCache: a size must not be negative; got batch -1, num_kv_heads 1, "
            "head_dim 4, value_dim 4, window 4, longest_append 1");
  const RollingKeyValueCache<float> none;
  EXPECT_EQ(none.batch(), 0);
  EXPECT_EQ(none.window(), 1);
}

}  // namespace
}  // namespace test
}  // namespace attn

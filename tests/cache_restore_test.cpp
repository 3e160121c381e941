// Caches that are saved, and others that go on from there.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rotary.hpp"
#include "support/cached_tokens.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

/// What is saved of a cache.
template <class T>
struct Saved {
  std::vector<Index> lengths, counts;
  TestTensor<T> k, v;

  template <class Cache>
  explicit Saved(const Cache& cache, Index padding = 0, Layout layout = Layout::contiguous)
      : lengths(cache.lengths().begin(), cache.lengths().end()),
        k({cache.batch(), cache.num_kv_heads(), cache.longest_held() + padding, cache.head_dim()},
          layout),
        v({cache.batch(), cache.num_kv_heads(), cache.longest_held() + padding, cache.value_dim()},
          layout) {
    for (Index b = 0; b < cache.batch(); ++b) counts.push_back(cache.num_held(b));
    k.fill_value(quiet_nan<T>());
    v.fill_value(quiet_nan<T>());
    cache.save(k.view(), v.view());
  }
};

/// Both caches give the same bits, and go on giving them.
template <class Cache>
void expect_alike(Cache a, Cache b, Index steps) {
  for (Index step = 0; step < steps; ++step) {
    TestTensor<float> q({a.batch(), kQueryHeads, 1, kKeyDim});
    q.fill_uniform(static_cast<std::uint64_t>(step), 3);
    ASSERT_TRUE(
        std::equal(a.lengths().begin(), a.lengths().end(), b.lengths().begin(), b.lengths().end()));
    const auto of_a = scaled_dot_product_attention(q.view(), a, causal_bottom_right() & alibi(), {},
                                                   Want::weights | Want::log_sum_exp);
    const auto of_b = scaled_dot_product_attention(q.view(), b, causal_bottom_right() & alibi(), {},
                                                   Want::weights | Want::log_sum_exp);
    EXPECT_TRUE(same_bits(of_a.output.view(), of_b.output.view())) << step;
    EXPECT_TRUE(same_bits(of_a.weights.view(), of_b.weights.view())) << step;
    EXPECT_TRUE(same_bits(of_a.log_sum_exp.view(), of_b.log_sum_exp.view())) << step;
    if (step + 1 == steps) break;
    TestTensor<float> k({a.batch(), kHeads, 1, kKeyDim}), v({a.batch(), kHeads, 1, kValueDim});
    k.fill_uniform(static_cast<std::uint64_t>(step + 50));
    v.fill_uniform(static_cast<std::uint64_t>(step + 90));
    a.append(k.view(), v.view());
    b.append(k.view(), v.view());
  }
}

// A window of 8 after 100 tokens, with rotary positions: the stream goes on where it was.
TEST(Restore, AStepGoesOnWithTheSameBits) {
  const AttentionConfig config = config_of(32, 4, 2);
  const GroupedQueryAttention<float> layer(config, 3);
  const RotaryEmbedding rotary(8, RotaryPairing::half_split);
  RollingKeyValueCache<float> cache(1, 2, 8, 8), other(1, 2, 8, 8);
  TestTensor<float> x({1, 1, 120, 32});
  x.fill_uniform(4);
  const auto step = [&](RollingKeyValueCache<float>& of, Index i) {
    TestTensor<float> out({1, 1, 1, 32});
    layer.step(x.view().slice_length(i, 1), of, out.view(), causal(), {}, &rotary);
    return out;
  };
  for (Index i = 0; i < 100; ++i) step(cache, i);
  const Saved<float> saved(cache);
  EXPECT_EQ(saved.k.shape().length, 8);
  other.restore(saved.lengths, saved.k.view(), saved.v.view());
  EXPECT_EQ(other.length(0), 100);
  EXPECT_EQ(other.first_held(0), 92);
  for (Index i = 100; i < 120; ++i) {
    EXPECT_TRUE(same_bits(step(cache, i).view(), step(other, i).view())) << i;
  }
}

template <class Cache>
void expect_restored(const Cache& empty, const std::vector<Index>& lengths) {
  const CachedTokens<float> tokens(lengths, kHeads, kKeyDim, kValueDim);
  Cache cache(empty);
  tokens.feed(cache, 4);
  for (const Layout layout : kAllLayouts) {
    for (const Index padding : {0, 3}) {
      const Saved<float> saved(cache, padding, layout);
      Cache other(empty);
      const CachedTokens<float> old({2, 3, 1}, kHeads, kKeyDim, kValueDim, 9);
      old.feed(other, 3);
      other.restore(saved.lengths, saved.k.view(), saved.v.view(), saved.counts);
      expect_alike(cache, other, 9);
      if (padding == 0) {
        other.reset();
        other.restore(saved.lengths, saved.k.view(), saved.v.view());
        expect_alike(cache, other, 9);
      }
    }
  }
  // Into itself, whose lengths are those that are given.
  Cache itself(cache);
  const Saved<float> saved(cache);
  itself.restore(itself.lengths(), saved.k.view(), saved.v.view());
  expect_alike(cache, itself, 9);
}

TEST(Restore, AllCaches) {
  expect_restored(KeyValueCache<float>(3, kHeads, 60, kKeyDim, kValueDim), {40, 3, 21});
  expect_restored(PagedKeyValueCache<float>(30, 4, 3, kHeads, kKeyDim, kValueDim), {40, 3, 21});
  expect_restored(RollingKeyValueCache<float>(3, kHeads, 8, kKeyDim, kValueDim, 4), {40, 3, 21});
  expect_restored(RollingKeyValueCache<float>(3, kHeads, 1, kKeyDim, kValueDim, 4), {4, 0, 1});
}

TEST(Restore, TokensTakenBackBeforeSaving) {
  const CachedTokens<float> tokens({40, 30}, kHeads, kKeyDim, kValueDim);
  const RollingKeyValueCache<float> empty(2, kHeads, 8, kKeyDim, kValueDim, 4);
  RollingKeyValueCache<float> cache(empty), other(empty);
  tokens.feed(cache, 4);
  const std::vector<Index> cut = {40, 28};
  cache.truncate(cut);
  EXPECT_EQ(cache.num_held(0), 11);
  EXPECT_EQ(cache.num_held(1), 9);
  const Saved<float> saved(cache);
  other.restore(saved.lengths, saved.k.view(), saved.v.view(), saved.counts);
  EXPECT_EQ(other.first_held(1), cache.first_held(1));
  expect_alike(cache, other, 20);
}

TEST(Restore, OtherElementTypesAreRoundedOnce) {
  const CachedTokens<float> tokens({6, 2}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> cache(2, kHeads, 8, kKeyDim, kValueDim), other(cache);
  tokens.feed(cache, 6);
  const Saved<double> in_double(cache);
  other.restore(in_double.lengths, in_double.k.view(), in_double.v.view());
  expect_alike(cache, other, 2);
  KeyValueCache<Eigen::half> half(2, kHeads, 8, kKeyDim, kValueDim);
  half.restore(in_double.lengths, in_double.k.view(), in_double.v.view());
  EXPECT_TRUE(same_bits(half.keys()(1, 0, 1, 3), to<Eigen::half>(tokens.k(1, 0, 1, 3))));
}

TEST(Restore, SharedPagesMayBeReplacedByTheWholePool) {
  const CachedTokens<float> tokens({8, 8}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(4, 4, 2, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 8);
  const Saved<float> saved(cache);
  cache.share_prefix(0, 1, 8);
  cache.restore(8, saved.k.view(), saved.v.view());
  EXPECT_EQ(cache.num_free_pages(), 0);
  TestTensor<float> q({2, kQueryHeads, 1, kKeyDim});
  q.fill_uniform(3);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
}

TEST(Restore, RefusesWhatDoesNotFitAndChangesNothing) {
  const CachedTokens<float> tokens({8, 5}, kHeads, kKeyDim, kValueDim);
  const std::string got =
      "; got cached keys [2, 2, 8, 7], cached values [2, 2, 8, 5], k [2, 2, 8, 7], v [2, 2, 8, 5]";
  KeyValueCache<float> cache(2, kHeads, 8, kKeyDim, kValueDim);
  tokens.feed(cache, 8);
  const KeyValueCache<float> before(cache);
  const std::vector<Index> three = {1, 1, 1}, too_long = {8, 9}, negative = {-1, 2},
                           lengths = {8, 5}, few = {8, 4}, many = {8, 6};
  const auto& k = tokens.k;
  const auto& v = tokens.v;
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.restore(three, k.view(), v.view()); }),
      "KeyValueCache::restore: lengths must hold one number, or one each sequence, 2, got 3" + got);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.restore(too_long, k.view(), v.view()); }),
            "KeyValueCache::restore: sequence 1 of 9 tokens cannot be: lengths must lie within 0 "
            "and 8" +
                got);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.restore(negative, k.view(), v.view()); }),
            "KeyValueCache::restore: sequence 0 of -1 tokens cannot be: lengths must lie within 0 "
            "and 8" +
                got);
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.restore(lengths, k.view(), v.view(), few); }),
      "KeyValueCache::restore: sequence 1 of 5 tokens needs between 5 and 5 of them, got 4" + got);
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.restore(lengths, k.view(), v.view(), many); }),
      "KeyValueCache::restore: sequence 1 of 5 tokens needs between 5 and 5 of them, got 6" + got);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.restore(lengths, cache.keys(), v.view()); }),
            "KeyValueCache::restore: cached keys overlaps k in memory; got cached keys "
            "[2, 2, 8, 7], cached values [2, 2, 8, 5], k [2, 2, 8, 7]");
  TestTensor<float> short_k({2, kHeads, 7, kKeyDim}), short_v({2, kHeads, 7, kValueDim});
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.save(short_k.view(), short_v.view()); }),
      "KeyValueCache::save: k and v must have room for the tokens that are held, up to 8 of a "
      "sequence; got cached keys [2, 2, 8, 7], cached values [2, 2, 8, 5], k [2, 2, 7, 7], v "
      "[2, 2, 7, 5]");
  expect_alike(cache, before, 1);

  RollingKeyValueCache<float> rolling(2, kHeads, 8, kKeyDim, kValueDim, 4);
  tokens.feed(rolling, 4);
  const RollingKeyValueCache<float> rolling_before(rolling);
  EXPECT_EQ(message_of<ShapeError>([&] {
              rolling.restore(100, short_k.view(), short_v.view());
            }).substr(0, 94),
            "RollingKeyValueCache::restore: sequence 0 of 100 tokens needs between 8 and 100 of "
            "them, got 7");
  expect_alike(rolling, rolling_before, 1);

  PagedKeyValueCache<float> paged(3, 4, 2, kHeads, kKeyDim, kValueDim);
  TestTensor<float> long_k({2, kHeads, 8, kKeyDim}), long_v({2, kHeads, 8, kValueDim});
  EXPECT_EQ(
      message_of<ShapeError>([&] { paged.restore(8, long_k.view(), long_v.view()); }).substr(0, 72),
      "PagedKeyValueCache::restore: 4 pages are needed, and the pool has 3; got");
}

}  // namespace
}  // namespace test
}  // namespace attn

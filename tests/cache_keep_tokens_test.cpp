// Sequences of a cache that drop some of their tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/rotary.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 8, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

using Kept = std::vector<Index>;

/// `tokens` with those of sequence 1 that stay.
CachedTokens<float> kept_of(const CachedTokens<float>& tokens, const Kept& kept) {
  std::vector<Index> lengths = tokens.lengths;
  lengths[1] = static_cast<Index>(kept.size());
  CachedTokens<float> result(lengths, kHeads, kKeyDim, kValueDim);
  const auto old = [&](Index b, Index i) {
    if (b != 1) return i;
    return i < lengths[1] ? kept[static_cast<std::size_t>(i)] : Index{-1};
  };
  const auto take = [&](TestTensor<float>& to, const TestTensor<float>& from) {
    to.fill([&](Index b, Index h, Index i, Index d) {
      return old(b, i) < 0 ? quiet_nan<float>() : from(b, h, old(b, i), d);
    });
  };
  take(result.k, tokens.k);
  take(result.v, tokens.v);
  return result;
}

TestTensor<float> queries(Index batch, Index length) {
  TestTensor<float> q({batch, kQueryHeads, length, kKeyDim});
  q.fill_uniform(3, 3);
  return q;
}

/// Some of `length` tokens, others for each seed.
Kept some_of(Index length, std::uint64_t seed) {
  Kept kept;
  for (Index t = 0; t < length; ++t) {
    if (uniform_below(seed, static_cast<std::uint64_t>(t), 3) > 0) kept.push_back(t);
  }
  return kept;
}

template <class Cache>
void expect_kept(const Cache& empty) {
  const CachedTokens<float> tokens({17, 23, 9}, kHeads, kKeyDim, kValueDim);
  std::vector<Kept> all = {{}, {0}, {22}, {0, 1, 2}, {5, 6, 7, 8, 22}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) all.push_back(some_of(23, seed));
  all.push_back(some_of(0, 0));
  Kept every;
  for (Index t = 0; t < 23; ++t) every.push_back(t);
  all.push_back(every);
  for (const Kept& kept : all) {
    Cache cache(empty);
    tokens.feed(cache, 30);
    cache.keep_tokens(1, kept);
    const CachedTokens<float> expected = kept_of(tokens, kept);
    // The last of each sequence's queries stands at its last key.
    expect_bits_of_tensors<float>(cache, expected, queries(3, 2), causal(), causal());
    const CachedTokens<float> more({1, 1, 1}, kHeads, kKeyDim, kValueDim, 4);
    cache.append(more.k.view(), more.v.view());
    EXPECT_EQ(cache.length(1), static_cast<Index>(kept.size()) + 1);
  }
}

TEST(KeepTokens, TheOthersAreAsIfTheyHadNeverBeen) {
  expect_kept(KeyValueCache<float>(3, kHeads, 24, kKeyDim, kValueDim));
  expect_kept(PagedKeyValueCache<float>(12, 8, 3, kHeads, kKeyDim, kValueDim));
  expect_kept(PagedKeyValueCache<float>(60, 1, 3, kHeads, kKeyDim, kValueDim));
  TestTensor<float> keys({3, kHeads, 24, kKeyDim}, Layout::inner_stride);
  TestTensor<float> values({3, kHeads, 24, kValueDim}, Layout::bshd);
  for (int round = 0; round < 2; ++round) {
    expect_kept(KeyValueCache<float>(keys.view(), values.view()));
  }
}

TEST(KeepTokens, SharedPagesStayAsTheyAre) {
  const CachedTokens<float> tokens({17, 17, 0}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(12, 4, 3, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 17);
  cache.share_prefix(1, 2, 15);
  const auto before = [&](Index count) {  // sequence 2 is a part of 1
    CachedTokens<float> all({17, count, 15}, kHeads, kKeyDim, kValueDim);
    all.k.fill(
        [&](Index b, Index h, Index i, Index d) { return tokens.k(b == 0 ? 0 : 1, h, i, d); });
    all.v.fill(
        [&](Index b, Index h, Index i, Index d) { return tokens.v(b == 0 ? 0 : 1, h, i, d); });
    return all;
  };
  const Index free = cache.num_free_pages();
  const Kept kept = {0, 1, 2, 3, 4, 8, 9, 10, 13, 16};
  cache.keep_tokens(1, kept);
  expect_bits_of_tensors<float>(cache, kept_of(before(17), kept), queries(3, 1), causal(),
                                causal());
  // Two pages of its own in the place of shared ones; two of five given back, one of them shared.
  EXPECT_EQ(cache.num_free_pages(), free - 2 + 1);
  cache.reset();
  EXPECT_EQ(cache.num_free_pages(), 12);
}

TEST(KeepTokens, RefusesToCopyPagesThatAreNotThere) {
  const CachedTokens<float> tokens({0, 16}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(5, 4, 2, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 16);
  cache.share_prefix(1, 0, 16);
  const Kept kept = {1, 2, 3, 4, 5, 6}, first = {0, 1, 2};
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.keep_tokens(1, kept); }),
      "PagedKeyValueCache::keep_tokens: tokens would be moved into pages that other sequences "
      "use too; to copy those 2 pages are needed, and 1 of 5 are free");
  EXPECT_EQ(cache.length(1), 16);
  EXPECT_EQ(cache.num_free_pages(), 1);
  cache.keep_tokens(1, first);  // moves none
  EXPECT_EQ(cache.length(1), 3);
}

// One path of a tree of drafts stays, behind a past that the ring has let go in part.
TEST(KeepTokens, RingsKeepOnePathOfATree) {
  for (const bool names_all : {true, false}) {
    CachedTokens<float> tokens({40, 40, 40}, kHeads, kKeyDim, kValueDim);
    RollingKeyValueCache<float> cache(3, kHeads, 8, kKeyDim, kValueDim, 6);
    tokens.feed(cache, 4);
    EXPECT_EQ(cache.first_held(1), 40 - 13);
    Kept kept, named;
    for (Index t = 0; t < 35; ++t) kept.push_back(t);
    for (const Index t : {36, 39}) kept.push_back(t);
    for (const Index t : kept) {
      if (names_all || t >= 27) named.push_back(t);
    }
    cache.keep_tokens(1, named);
    EXPECT_EQ(cache.length(1), 37);
    EXPECT_EQ(cache.first_held(1), 27);
    const auto window = sliding_window(7, kUnlimited);
    expect_bits_of_tensors<float>(cache, kept_of(tokens, kept), queries(3, 1), causal(),
                                  causal() & window);
    // So many more that the window would reach back too far.
    Kept few = named;
    few.resize(few.size() - 3);
    EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, few); }),
              "RollingKeyValueCache::keep_tokens: sequence 1 of 37 tokens cannot be cut to 34: the "
              "window of 8 tokens would reach back behind token 27, the first that is kept (a "
              "larger longest_append keeps more)");
    expect_bits_of_tensors<float>(cache, kept_of(tokens, kept), queries(3, 1), causal(),
                                  causal() & window);
  }
}

TEST(KeepTokens, RingsThatHaveLetNothingGo) {
  const CachedTokens<float> tokens({11, 11, 5}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(3, kHeads, 8, kKeyDim, kValueDim, 6);
  tokens.feed(cache, 4);
  const Kept kept = {2, 3, 9};
  cache.keep_tokens(1, kept);
  expect_bits_of_tensors<float>(cache, kept_of(tokens, kept), queries(3, 1), causal(),
                                causal() & sliding_window(7, kUnlimited));
}

// Keys that move are turned back: those of tokens that were appended where they stand then, up to
// two more roundings of elements whose pairs are at most 2 long, and a factor only once.
TEST(KeepTokens, TurnsTheKeysThatMove) {
  RotaryOptions yarn;
  yarn.scaling = RotaryScaling::yarn(4, 32);
  for (const RotaryOptions& options : {RotaryOptions(), yarn}) {
    const RotaryEmbedding rotary(kKeyDim, RotaryPairing::half_split, 100, options);
    const CachedTokens<float> tokens({17, 23, 9}, kHeads, kKeyDim, kValueDim);
    const Kept kept = {0, 1, 9, 10, 11, 17, 22};
    const auto turned = [&](CachedTokens<float> of) {
      rotary.apply(of.k.view(), 0);
      return of;
    };
    const CachedTokens<float> expected = turned(kept_of(tokens, kept));
    PagedKeyValueCache<float> paged(20, 4, 3, kHeads, kKeyDim, kValueDim);
    KeyValueCache<float> cache(3, kHeads, 24, kKeyDim, kValueDim);
    turned(tokens).feed(cache, 30);
    turned(tokens).feed(paged, 30);
    cache.keep_tokens(1, kept, rotary);
    paged.keep_tokens(1, kept, rotary);
    TestTensor<float> k({3, kHeads, 17, kKeyDim}), v({3, kHeads, 17, kValueDim});
    paged.save(k.view(), v.view());
    for (Index i = 0; i < 7; ++i) {
      for (Index h = 0; h < kHeads; ++h) {
        for (Index d = 0; d < kKeyDim; ++d) {
          const float right = expected.k(1, h, i, d);
          EXPECT_NEAR(cache.keys()(1, h, i, d), right, 3 * 2 * 0x1p-24 * rotary.attention_factor());
          EXPECT_EQ(cache.keys()(1, h, i, d), k(1, h, 10 + i, d));
          if (i < 2) {
            EXPECT_EQ(cache.keys()(1, h, i, d), right);
          }
        }
      }
    }
    EXPECT_EQ(cache.keys()(0, 1, 16, 3), expected.k(0, 1, 16, 3));
  }
}

TEST(KeepTokens, RefusesTokensThatAreNotThereAndChangesNothing) {
  const CachedTokens<float> tokens({17, 23, 9}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> cache(3, kHeads, 24, kKeyDim, kValueDim);
  tokens.feed(cache, 30);
  const Kept beyond = {3, 23}, negative = {-1, 2}, twice = {1, 1}, down = {2, 1}, one = {1};
  const std::string rule =
      "KeyValueCache::keep_tokens: tokens must ascend within 0 and the length of the sequence, 23, "
      "got ";
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, beyond); }), rule + "23 as number 1");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, negative); }),
            rule + "-1 as number 0");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, twice); }), rule + "1 as number 1");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, down); }), rule + "1 as number 1");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(3, one); }),
            "KeyValueCache::keep_tokens: there is no sequence 3 among the 3 of the cache");
  const RotaryEmbedding other_dim(4, RotaryPairing::half_split);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, one, other_dim); }),
            "KeyValueCache::keep_tokens: the rotary embedding must have the head_dim of the cache, "
            "8, not 4");
  TestTensor<float> table({1, 1, 40, kKeyDim / 2});
  table.fill_uniform(1);
  const auto given =
      RotaryEmbedding::from_tables(kKeyDim, RotaryPairing::half_split, table.view(), table.view());
  EXPECT_EQ(message_of<ShapeError>([&] { cache.keep_tokens(1, one, given); }),
            "KeyValueCache::keep_tokens: a rotary embedding of given tables does not tell by what "
            "angle a key that has moved must be turned: make it of frequencies");
  EXPECT_EQ(message_of<ShapeError>([&] { given.shift(table.view().slice_length(0, 1), 1); }),
            "RotaryEmbedding::shift: a rotary embedding of given tables does not tell the angle of "
            "a step; got x [1, 1, 1, 4]");
  expect_bits_of_tensors<float>(cache, tokens, queries(3, 1), causal(), causal());
}

}  // namespace
}  // namespace test
}  // namespace attn

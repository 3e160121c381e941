// Sequences of a cache that take the tokens of their parents.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

using Parents = std::vector<Index>;

/// Calls f(parents) for all of batch^batch.
template <class F>
void for_each_parents(Index batch, const F& f) {
  Parents parents(static_cast<std::size_t>(batch));
  for (;;) {
    f(parents);
    std::size_t b = 0;
    while (b < parents.size() && ++parents[b] == batch) parents[b++] = 0;
    if (b == parents.size()) return;
  }
}

std::string text_of(const Parents& parents) {
  std::string text = "parents";
  for (const Index parent : parents) text += ' ' + std::to_string(parent);
  return text;
}

/// What the sequences of `tokens` hold once each has taken its parent's.
template <class T>
CachedTokens<T> taken(const CachedTokens<T>& tokens, const Parents& parents) {
  std::vector<Index> lengths;
  for (const Index parent : parents) lengths.push_back(tokens.length(parent));
  CachedTokens<T> result(lengths, tokens.k.shape().heads, tokens.k.shape().dim,
                         tokens.v.shape().dim);
  const auto parent = [&](Index b) { return parents[static_cast<std::size_t>(b)]; };
  result.k.fill([&](Index b, Index h, Index i, Index d) { return tokens.k(parent(b), h, i, d); });
  result.v.fill([&](Index b, Index h, Index i, Index d) { return tokens.v(parent(b), h, i, d); });
  return result;
}

/// Attention over a cache, whose sequences go on after they have been moved, has the bits of their
/// tokens.
template <class T, class Cache, class M>
void expect_taken(Cache cache, const CachedTokens<T>& tokens, const Parents& parents,
                  const M& window) {
  SCOPED_TRACE(text_of(parents));
  cache.reorder(parents);
  CachedTokens<T> expected = taken(tokens, parents);
  TestTensor<T> q({cache.batch(), kQueryHeads, 1, expected.k.shape().dim});
  q.fill_uniform(3, 3);
  expect_bits_of_tensors<T>(cache, expected, q, causal_bottom_right(), causal() & window);
  // Each goes its own way from there.
  const CachedTokens<T> more({1, 1, 1, 1}, kHeads, expected.k.shape().dim, expected.v.shape().dim,
                             5);
  std::vector<Index> longer;
  for (const Index length : expected.lengths) longer.push_back(length + 1);
  CachedTokens<T> all(longer, kHeads, expected.k.shape().dim, expected.v.shape().dim);
  const auto join = [&](TestTensor<T>& to, const TestTensor<T>& old, const TestTensor<T>& added) {
    to.fill([&](Index b, Index h, Index i, Index d) {
      return i < expected.length(b)    ? old(b, h, i, d)
             : i == expected.length(b) ? added(b, h, 0, d)
                                       : quiet_nan<T>();
    });
  };
  join(all.k, expected.k, more.k);
  join(all.v, expected.v, more.v);
  cache.append(more.k.view().slice_batch(0, cache.batch()),
               more.v.view().slice_batch(0, cache.batch()));
  expect_bits_of_tensors<T>(cache, all, q, causal(), causal() & window);
}

std::vector<Index> lengths_of(Index batch, std::vector<Index> lengths) {
  lengths.resize(static_cast<std::size_t>(batch));
  return lengths;
}

TEST(Reorder, EverySequenceTakesItsParentsTokens) {
  for (Index batch = 1; batch <= 4; ++batch) {
    const CachedTokens<float> tokens(lengths_of(batch, {9, 0, 14, 5}), kHeads, kKeyDim, kValueDim);
    KeyValueCache<float> cache(batch, kHeads, 16, kKeyDim, kValueDim);
    tokens.feed(cache, 20);
    for_each_parents(
        batch, [&](const Parents& parents) { expect_taken(cache, tokens, parents, no_mask()); });
  }
}

TEST(Reorder, RingsThatHaveGoneRound) {
  const CachedTokens<float> tokens({40, 3, 21, 0}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(4, kHeads, 8, kKeyDim, kValueDim, 4);
  tokens.feed(cache, 4);
  for_each_parents(4, [&](const Parents& parents) {
    expect_taken(cache, tokens, parents, sliding_window(7, kUnlimited));
    RollingKeyValueCache<float> moved(cache);
    moved.reorder(parents);
    for (Index b = 0; b < 4; ++b) {
      EXPECT_EQ(moved.first_held(b), cache.first_held(parents[static_cast<std::size_t>(b)]));
    }
  });
}

TEST(Reorder, PagesAreSharedAndGivenBack) {
  const CachedTokens<float> tokens({9, 0, 14, 5}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(20, 4, 4, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 20);
  for_each_parents(4, [&](const Parents& parents) {
    SCOPED_TRACE(text_of(parents));
    expect_taken(cache, tokens, parents, no_mask());
    PagedKeyValueCache<float> moved(cache);
    moved.reorder(parents);
    Index used = 0;
    for (Index b = 0; b < 4; ++b) {
      if (std::count(parents.begin(), parents.end(), b) > 0) used += cache.pages(b).size();
      const Index parent = parents[static_cast<std::size_t>(b)];
      EXPECT_TRUE(std::equal(moved.pages(b).begin(), moved.pages(b).end(),
                             cache.pages(parent).begin(), cache.pages(parent).end()));
    }
    EXPECT_EQ(moved.num_free_pages(), 20 - used);
    moved.reset();
    EXPECT_EQ(moved.num_free_pages(), 20);
  });
}

TEST(Reorder, AppendsThatNeedMorePagesThanAreFreeChangeNothing) {
  const CachedTokens<float> tokens({5, 5, 5}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(6, 4, 3, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 5);
  EXPECT_EQ(cache.num_free_pages(), 0);
  const Parents all_of_the_first = {0, 0, 0};
  cache.reorder(all_of_the_first);
  EXPECT_EQ(cache.num_free_pages(), 4);
  cache.append_to(0, tokens.k.view().slice_batch(1, 1), tokens.v.view().slice_batch(1, 1));
  EXPECT_EQ(cache.num_free_pages(), 2);  // a copy of the page that is not full, and one more
  const Parents swap_two = {1, 0, 2};
  cache.reorder(swap_two);
  TestTensor<float> k({3, kHeads, 4, kKeyDim}), v({3, kHeads, 4, kValueDim});
  k.fill_uniform(1);
  v.fill_uniform(2);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append(k.view(), v.view()); }),
            "PagedKeyValueCache::append: append past capacity: 4 more pages are needed, and 2 of 6 "
            "are free; got cached keys [6, 2, 4, 7], cached values [6, 2, 4, 5], k [3, 2, 4, 7], "
            "v [3, 2, 4, 5]");
  EXPECT_EQ(cache.num_free_pages(), 2);
  EXPECT_EQ(cache.length(1), 10);
}

/// Memory of the caller's, in any order, with what lies between the rows left alone.
template <class T>
void expect_taken_in(Layout layout, Index dim) {
  const CachedTokens<T> tokens({9, 3, 14, 5}, kHeads, dim, dim);
  const Parents kParents[] = {{1, 2, 3, 0}, {1, 0, 3, 2}, {2, 2, 0, 0}, {0, 3, 1, 1}, {3, 3, 3, 2}};
  for (const Parents& parents : kParents) {
    TestTensor<T> keys({4, kHeads, 16, dim}, layout), values({4, kHeads, 16, dim}, layout);
    KeyValueCache<T> cache(keys.view(), values.view());
    tokens.feed(cache, 20);
    expect_taken(cache, tokens, parents, no_mask());
    EXPECT_TRUE(keys.gaps_are_untouched());
    EXPECT_TRUE(values.gaps_are_untouched());
  }
}

TEST(Reorder, MemoryOfAnyStrides) {
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    expect_taken_in<float>(layout, 6);
    expect_taken_in<double>(layout, 3);
    expect_taken_in<Eigen::half>(layout, 6);
  }
  expect_taken_in<double>(Layout::contiguous,
                          1100);  // a row is longer than the buffer of a rotation
}

TEST(Reorder, OfItselfAndOfNothing) {
  const Parents nobody, itself = {0};
  KeyValueCache<float> none;
  none.reorder(nobody);
  KeyValueCache<float> empty(1, 0, 4, 0);
  empty.reorder(itself);
  KeyValueCache<float> without_dims(2, 1, 4, 0);
  TestTensor<float> tokens({1, 1, 3, 0});
  without_dims.append_to(1, tokens.view(), tokens.view());
  const Parents swapped = {1, 0};
  without_dims.reorder(swapped);
  EXPECT_EQ(without_dims.length(0), 3);
  EXPECT_EQ(without_dims.length(1), 0);
}

template <class Cache>
void expect_refused(Cache cache, const std::string& name) {
  const CachedTokens<float> tokens({3, 2}, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 3);
  const Parents one = {0}, beyond = {0, 2}, negative = {-1, 0};
  EXPECT_EQ(message_of<ShapeError>([&] { cache.reorder(one); }),
            name + "::reorder: needs one parent a sequence, 2, got 1");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.reorder(beyond); }),
            name + "::reorder: the parent of sequence 1 must be one of the 2 of the cache, got 2");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.reorder(negative); }),
            name + "::reorder: the parent of sequence 0 must be one of the 2 of the cache, got -1");
  TestTensor<float> q({2, kQueryHeads, 1, kKeyDim});
  q.fill_uniform(3);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
}

TEST(Reorder, RefusesWhoIsNotThere) {
  expect_refused(KeyValueCache<float>(2, kHeads, 4, kKeyDim, kValueDim), "KeyValueCache");
  expect_refused(RollingKeyValueCache<float>(2, kHeads, 4, kKeyDim, kValueDim),
                 "RollingKeyValueCache");
  expect_refused(PagedKeyValueCache<float>(4, 2, 2, kHeads, kKeyDim, kValueDim),
                 "PagedKeyValueCache");
}

// Many sequences at random: trees that hang on rings of every length.
TEST(Reorder, ManySequences) {
  constexpr Index kBatch = 60;
  std::vector<Index> lengths;
  for (Index b = 0; b < kBatch; ++b) lengths.push_back(1 + b * 7 % 13);
  const CachedTokens<float> tokens(lengths, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> cache(kBatch, kHeads, 13, kKeyDim, kValueDim);
  PagedKeyValueCache<float> paged(kBatch * 5, 3, kBatch, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 13);
  tokens.feed(paged, 13);
  TestTensor<float> q({kBatch, kQueryHeads, 1, kKeyDim});
  q.fill_uniform(3, 3);
  Parents so_far;
  for (Index b = 0; b < kBatch; ++b) so_far.push_back(b);
  for (std::uint64_t round = 0; round < 6; ++round) {
    Parents parents;
    for (Index b = 0; b < kBatch; ++b) {
      // A permutation in every second round.
      const std::uint64_t any =
          uniform_below(round, static_cast<std::uint64_t>(b), std::uint64_t{kBatch});
      parents.push_back(round % 2 == 0 ? (b * 7 + 3) % kBatch : static_cast<Index>(any));
    }
    cache.reorder(parents);
    paged.reorder(parents);
    Parents next;
    for (const Index parent : parents) next.push_back(so_far[static_cast<std::size_t>(parent)]);
    so_far = next;
    const CachedTokens<float> expected = taken(tokens, so_far);
    expect_bits_of_tensors<float>(cache, expected, q, causal(), causal());
    expect_bits_of_tensors<float>(paged, expected, q, causal(), causal());
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// Unions, segments and masks of some keys wherever masks are taken: over contiguous, paged and
// rolling caches, in ragged calls and in layers, with the bits of the same mask as a tensor of
// elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/ragged.hpp"
#include "attn/thread_pool.hpp"
#include "support/cached_tokens.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

/// The elements of a mask over the tokens of caches, whose queries stand at their ends.
struct Elements {
  TestTensor<bool> keep;

  Elements(const AnyMask& mask, const CachedTokens<float>& tokens, Index queries)
      : keep({tokens.batch(), kQueryHeads, queries, tokens.longest()}) {
    keep.fill([&](Index b, Index h, Index i, Index j) {
      return mask.allows({b, h, i, j, i + tokens.length(b) - queries});
    });
  }
};

/// Masks of every new kind, alone and composed, and what they look at.
struct NewMasks {
  std::vector<Index> some;
  TestTensor<std::int32_t> query_ids, key_ids;
  TestTensor<bool> tree;
  std::vector<Index> past;
  std::vector<std::pair<std::string, AnyMask>> all;

  NewMasks(const CachedTokens<float>& tokens, Index queries)
      : query_ids({tokens.batch(), 1, queries, 1}),
        key_ids({1, 1, tokens.longest(), 1}),
        tree({1, 1, queries, queries}) {
    for (Index b = 0; b < tokens.batch(); ++b) {
      some.push_back((std::min)(tokens.length(b), 1 + b));
      past.push_back(tokens.length(b) - queries);
    }
    query_ids.fill([&](Index b, Index, Index i, Index) {
      return static_cast<std::int32_t>((i + tokens.length(b) - queries) / 6 - 1);
    });
    key_ids.fill([](Index, Index, Index j, Index) { return static_cast<std::int32_t>(j / 6 - 1); });
    tree.fill([](Index, Index, Index i, Index j) { return j == 0 || j == i; });
    const auto third =
        keep_if([](ScorePosition at) { return at.key % 3 == at.query_position % 3; });
    const auto segments = same_segment(query_ids.view(), key_ids.view());
    all = {{"first_keys | window", first_keys(some) | sliding_window(3, 0)},
           {"causal | first_keys", causal() | first_keys(4)},
           {"keys_between", keys_between(some, kUnlimited) & causal()},
           {"segments", segments},
           {"causal | segments", causal() | segments},
           {"new keys", keep_where(tree.view(), past)},
           {"new keys & window", keep_where(tree.view(), past) & sliding_window(5, kUnlimited)},
           {"all of them",
            ((first_keys(1) | segments | (third & causal())) & keys_between(some, kUnlimited)) |
                sliding_window(1, 1)}};
  }
};

template <class Cache>
void hold(Cache& cache, const CachedTokens<float>& tokens, Index queries) {
  tokens.feed(cache, 9);
  TestTensor<float> q({tokens.batch(), kQueryHeads, queries, kKeyDim});
  q.fill_uniform(3, 3);
  const NewMasks masks(tokens, queries);
  for (const auto& [name, mask] : masks.all) {
    SCOPED_TRACE(name + ", queries " + std::to_string(queries));
    const Elements elements(mask, tokens, queries);
    expect_bits_of_tensors<float>(cache, tokens, q, mask, keep_where(elements.keep.view()));
  }
}

TEST(MasksEverywhere, OverContiguousAndPagedCaches) {
  const CachedTokens<float> tokens({300, 23, 150}, kHeads, kKeyDim, kValueDim);
  for (const Index queries : {1, 4, 20}) {
    KeyValueCache<float> contiguous(3, kHeads, 310, kKeyDim, kValueDim);
    hold(contiguous, tokens, queries);
    PagedKeyValueCache<float> paged(128, 4, 3, kHeads, kKeyDim, kValueDim);
    hold(paged, tokens, queries);
  }
}

// The keys of a rolling cache keep their positions in the stream.
TEST(MasksEverywhere, OverRollingCaches) {
  const CachedTokens<float> tokens({200, 12}, kHeads, kKeyDim, kValueDim);
  const Index window = 24;
  for (const Index queries : {1, 4, 9}) {
    RollingKeyValueCache<float> cache(2, kHeads, window, kKeyDim, kValueDim, 9);
    tokens.feed(cache, 9);
    TestTensor<float> q({2, kQueryHeads, queries, kKeyDim});
    q.fill_uniform(3, 3);
    const auto held = sliding_window(window - 1, kUnlimited);
    const NewMasks masks(tokens, queries);
    for (const auto& [name, mask] : masks.all) {
      SCOPED_TRACE(name);
      const Elements elements(mask & held, tokens, queries);
      expect_bits_of_tensors<float>(cache, tokens, q, mask, keep_where(elements.keep.view()));
    }
  }
}

// Queries that stand further back than the cache holds keys need a mask that hides what is missing:
// the gaps of a union do.
TEST(MasksEverywhere, GapsHideWhatARollingCacheHasLetGo) {
  const CachedTokens<float> tokens({200, 200}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 120, kKeyDim, kValueDim, 9);
  tokens.feed(cache, 9);
  ASSERT_EQ(cache.first_held(0), 72);
  TestTensor<float> q({2, kQueryHeads, 1, kKeyDim}), out({2, kQueryHeads, 1, kValueDim});
  q.fill_uniform(3, 3);
  AttentionOptions options;
  options.query_offset = 150;  // its window begins with key 31
  const auto attend = [&](const AnyMask& mask) {
    scaled_dot_product_attention(q.view(), cache, out.view(), mask, options);
  };
  const auto held = keys_between(72, kUnlimited);
  EXPECT_THROW(attend(no_mask()), ShapeError);
  EXPECT_NO_THROW(attend(held));
  EXPECT_NO_THROW(attend(first_keys(31) | held));
  EXPECT_EQ(message_of<ShapeError>([&] { attend(keys_between(60, 61) | held); }),
            "scaled_dot_product_attention: query 0 of batch 0, at position 150, sees key 60, and "
            "the cache holds none before 72: it keeps the windows of its last longest_append "
            "tokens, and no query may stand further back unless its mask hides what is missing; "
            "got q [2, 4, 1, 7], k [2, 2, 200, 7], v [2, 2, 200, 5], out [2, 4, 1, 5]");
}

TEST(MasksEverywhere, InRaggedCalls) {
  const std::vector<Index> starts = {0, 40, 41, 130};
  TestTensor<float> q({1, kQueryHeads, 130, kKeyDim}), k({1, kHeads, 130, kKeyDim}),
      v({1, kHeads, 130, kValueDim});
  q.fill_uniform(1, 3);
  k.fill_uniform(2);
  v.fill_uniform(3);
  const std::vector<Index> counts = {5, 1, 3};
  const auto third = keep_if([](ScorePosition at) { return at.key % 3 == at.query % 3; });
  ThreadPool pool(3);
  const auto hold_ragged = [&](const AnyMask& mask) {
    const AnyMask elements = keep_if([&](ScorePosition at) { return mask.allows(at); });
    TestTensor<float> out({1, kQueryHeads, 130, kValueDim}), expected(out.shape());
    AttentionOptions options;
    options.executor = &pool;
    ragged_attention(q.view(), k.view(), v.view(), out.view(), starts, mask, options);
    ragged_attention(q.view(), k.view(), v.view(), expected.view(), starts, elements);
    EXPECT_TRUE(same_bits(out.view(), expected.view()));
  };
  hold_ragged(first_keys(counts) | sliding_window(3, 0));
  hold_ragged(causal() | first_keys(counts));
  hold_ragged(keys_between(counts, kUnlimited) & causal());
  hold_ragged((third & keys_between(0, counts)) | (sliding_window(2, 2) & first_keys(30)));
}

TEST(MasksEverywhere, InLayers) {
  const LayerMemory<float> memory(config_of(24, 6, 2));
  const auto layer = memory.layer();
  const Index length = 50;
  TestTensor<float> x({2, 1, length, 24});
  x.fill_uniform(5, 2);
  TestTensor<std::int32_t> ids({2, 1, length, 1});
  ids.fill([](Index b, Index, Index i, Index) { return static_cast<std::int32_t>(i / (9 + b)); });
  const auto hold_layer = [&](const AnyMask& mask) {
    const AnyMask elements = keep_if([&](ScorePosition at) { return mask.allows(at); });
    TestTensor<float> out(x.shape()), expected(x.shape());
    layer.forward(x.view(), out.view(), mask);
    layer.forward(x.view(), expected.view(), elements);
    EXPECT_TRUE(same_bits(out.view(), expected.view()));
  };
  hold_layer(causal() | same_segment(ids.view()));
  hold_layer((first_keys(2) | sliding_window(5, 0)) & keys_between(1, kUnlimited));
  // Step by step, the window and the first tokens.
  const auto sinks = (first_keys(2) | sliding_window(5, 0)) & causal();
  const auto elements = keep_if([&](ScorePosition at) { return sinks.allows(at); });
  TestTensor<float> stepped(x.shape()), expected(x.shape());
  KeyValueCache<float> cache(2, 2, 64, 4), other(2, 2, 64, 4);
  for (Index i = 0; i < length; i += 10) {
    const auto part = [i](TestTensor<float>& tokens) { return tokens.view().slice_length(i, 10); };
    layer.step(part(x), cache, part(stepped), sinks);
    layer.step(part(x), other, part(expected), elements);
  }
  EXPECT_TRUE(same_bits(stepped.view(), expected.view()));
}

}  // namespace
}  // namespace test
}  // namespace attn

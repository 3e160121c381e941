// Attention over a cache has the bits of attention over tensors, and sees no more than they hold.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/mask.hpp"
#include "kv_cache_test/cache.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

/// Calls f(mask, over_tensors) with one mask of each kind for scores [B, 6, Sq, Sk], and what it
/// means over tensors of which a call knows no lengths.
template <class F>
void for_each_mask(Index query_length, Index key_length, const F& f) {
  TestTensor<bool> keep({1, 1, query_length, key_length});
  keep.fill([](Index, Index, Index i, Index j) { return (i * 7 + j * 3) % 5 != 0; });
  TestTensor<float> bias({1, 6, 1, key_length});
  bias.fill_uniform(9);
  std::vector<AnyMask> masks = {
      no_mask(),
      causal(),
      causal() & sliding_window(5, 0),
      sliding_window(3, 2),
      alibi(),
      keep_where(keep.view()),
      add_bias(bias.view()) & causal(),
      keep_if([](const ScorePosition& at) { return at.key != at.query_position - 2; }),
      modify_score([](auto score, const ScorePosition& at) {
        return score + static_cast<decltype(score)>(at.key - at.query_position) / 8;
      })};
  for (std::size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE("mask " + std::to_string(i));
    f(masks[i], masks[i]);
  }
  // Over tensors bottom right is the longest length's.
  f(causal_bottom_right(), causal());
}

// Lengths lie on both sides of a tile of 128 keys.

TEST(KeyValueCache, HasTheBitsOfTensors) {
  const CachedTokens<float> tokens({131, 131}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> cache(2, kHeads, 140, kKeyDim, kValueDim);
  tokens.feed(cache, 50);
  for (const Index query_length : {1, 3, 17}) {
    SCOPED_TRACE(query_length);
    const auto q = queries(2, kQueryHeads, query_length, kKeyDim);
    for_each_mask(query_length, 131, [&](const AnyMask& mask, const AnyMask& over_tensors) {
      expect_bits_of_tensors<float>(cache, tokens, q, mask, over_tensors);
    });
  }
}

TEST(KeyValueCache, HasTheBitsOfTensorsWithKeyLengths) {
  const CachedTokens<float> tokens({3, 0, 140, 64}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> cache(4, kHeads, 140, kKeyDim, kValueDim);
  tokens.feed(cache, 33);
  EXPECT_EQ(cache.longest_length(), 140);
  for (const Index query_length : {1, 3, 17}) {
    SCOPED_TRACE(query_length);
    const auto q = queries(4, kQueryHeads, query_length, kKeyDim);
    for_each_mask(query_length, 140, [&](const AnyMask& mask, const AnyMask& over_tensors) {
      expect_bits_of_tensors<float>(cache, tokens, q, mask, over_tensors);
    });
  }
}

TEST(KeyValueCache, SplitsLongKeysAsTensorsDo) {
  const CachedTokens<float> tokens({4100, 9000}, 1, 4, 3);
  KeyValueCache<float> cache(2, 1, 9000, 4, 3);
  tokens.feed(cache, 4500);
  const auto q = queries(2, 2, 1, 4);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
  expect_bits_of_tensors<float>(cache, tokens, q, sliding_window(2000, 0), sliding_window(2000, 0));
}

TYPED_TEST(CacheOf, AnyElementServesQueriesOfAnyOther) {
  using T = TypeParam;
  const CachedTokens<T> tokens({20, 9}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<T> cache(2, kHeads, 20, kKeyDim, kValueDim);
  tokens.feed(cache, 8);
  const auto q = queries(2, kQueryHeads, 4, kKeyDim);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
}

TEST(KeyValueCache, NothingBehindALengthIsRead) {
  const CachedTokens<float> tokens({40, 7}, kHeads, kKeyDim, kValueDim);
  const auto q = queries(2, kQueryHeads, 3, kKeyDim);
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    // The caller's memory holds NaN throughout.
    TestTensor<float> k({2, kHeads, 64, kKeyDim}, layout), v({2, kHeads, 64, kValueDim}, layout);
    KeyValueCache<float> cache(k.view(), v.view());
    tokens.feed(cache, 16);
    expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
    EXPECT_TRUE(k.gaps_are_untouched());
    EXPECT_TRUE(v.gaps_are_untouched());

    // Tokens that are taken back leave nothing.
    TestTensor<float> nan({2, kHeads, 20, kKeyDim}), nan_v({2, kHeads, 20, kValueDim});
    cache.append(nan.view(), nan_v.view());
    cache.truncate(tokens.lengths);
    expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
  }
}

/// Pages of memory that nobody may touch behind the tokens of each head.
class GuardedTokens {
 public:
  GuardedTokens(Index heads, Index dim, Index tokens)
      : bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), heads_(heads), dim_(dim) {
    memory_ =
        static_cast<char*>(mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const std::size_t used = static_cast<std::size_t>(tokens * dim) * sizeof(float);
    EXPECT_EQ(used % bytes_, 0u) << "the tokens of a head must fill whole pages";
    for (Index h = 0; h < heads; ++h) {
      mprotect(memory_ + static_cast<std::size_t>(h) * 2 * used, used, PROT_READ | PROT_WRITE);
    }
    head_stride_ = 2 * tokens * dim;
    capacity_ = 2 * tokens;
  }
  GuardedTokens(const GuardedTokens&) = delete;
  GuardedTokens& operator=(const GuardedTokens&) = delete;
  ~GuardedTokens() { munmap(memory_, size()); }

  Tensor4<float> view() const {
    return {reinterpret_cast<float*>(memory_),
            {1, heads_, capacity_, dim_},
            {heads_ * head_stride_, head_stride_, dim_, 1}};
  }

 private:
  static constexpr std::size_t kPages = 64;
  std::size_t size() const { return kPages * bytes_; }

  std::size_t bytes_;
  Index heads_, dim_;
  char* memory_;
  Index head_stride_ = 0, capacity_ = 0;
};

TEST(KeyValueCache, NothingBehindALengthIsTouched) {
  // 128 tokens of 8 floats are a page of 4 KiB; the 128 behind them trap.
  const Index page = static_cast<Index>(sysconf(_SC_PAGESIZE)) / 32;
  const GuardedTokens k(kHeads, 8, page), v(kHeads, 8, page);
  KeyValueCache<float> cache(k.view(), v.view());
  const CachedTokens<float> tokens({page}, kHeads, 8, 8);
  tokens.feed(cache, 50);
  EXPECT_EQ(cache.capacity(), 2 * page);
  for (const Index query_length : {1, 20}) {
    expect_bits_of_tensors<float>(cache, tokens, queries(1, kQueryHeads, query_length, 8), causal(),
                                  causal());
  }
}

TEST(KeyValueCache, OneSequenceServesAllBatches) {
  const CachedTokens<float> tokens({30}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> contiguous(1, kHeads, 40, kKeyDim, kValueDim);
  PagedKeyValueCache<float> paged(8, 7, 1, kHeads, kKeyDim, kValueDim);
  tokens.feed(contiguous, 30);
  tokens.feed(paged, 30);
  const auto q = queries(3, kQueryHeads, 4, kKeyDim);
  AttentionOptions options;
  options.query_offset = 26;
  const auto expected =
      scaled_dot_product_attention(q.view(), tokens.k.view(), tokens.v.view(), causal(), options);
  const auto shared = scaled_dot_product_attention(q.view(), contiguous, causal());
  EXPECT_TRUE(same_bits(shared.output.view(), expected.output.view()));
  const auto from_pages = scaled_dot_product_attention(q.view(), paged, causal());
  EXPECT_TRUE(same_bits(from_pages.output.view(), expected.output.view()));
}

}  // namespace
}  // namespace test
}  // namespace attn

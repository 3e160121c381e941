#include "attn/kv_cache.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "attn/executor.hpp"
#include "attn/mask.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

TestTensor<float> queries(Index batch, Index heads, Index length, Index dim) {
  TestTensor<float> q({batch, heads, length, dim});
  q.fill_uniform(77, 3);
  return q;
}

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

// Each head has its own dims; lengths lie on both sides of a tile of 128 keys.
constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 6;

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

template <class T>
class CacheOf : public ::testing::Test {};
using AllTypes = ::testing::Types<double, float, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(CacheOf, AllTypes, TypeNames);

TYPED_TEST(CacheOf, AnyElementServesQueriesOfAnyOther) {
  using T = TypeParam;
  const CachedTokens<T> tokens({20, 9}, kHeads, kKeyDim, kValueDim);
  KeyValueCache<T> cache(2, kHeads, 20, kKeyDim, kValueDim);
  tokens.feed(cache, 8);
  const auto q = queries(2, kQueryHeads, 4, kKeyDim);
  expect_bits_of_tensors<float>(cache, tokens, q, causal(), causal());
}

TYPED_TEST(CacheOf, StoresWhatIsAppendedRoundedOnce) {
  using T = TypeParam;
  // 1 + 2^-8 + 2^-40 lies just above the middle of two bfloat16, 1 + 2^-11 + 2^-40 of two halves:
  // rounded to float first, they would be ties and go down.
  const std::vector<double> values = {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, -0.1, 1e300};
  KeyValueCache<T> cache(1, 1, 4, 1);
  const Tensor4<const double> tokens(values.data(), {1, 1, 4, 1});
  cache.append(tokens, tokens);
  const double expected[] = {
      std::is_same_v<T, Eigen::bfloat16> ? 1 + 0x1p-7 : 1 + 0x1p-8,
      std::is_same_v<T, Eigen::half> ? 1 + 0x1p-10 : 1 + 0x1p-11,
  };
  for (Index i = 0; i < 4; ++i) {
    const T stored = cache.keys()(0, 0, i, 0);
    const double value = values[static_cast<std::size_t>(i)];
    if (std::is_same_v<T, double>) {
      EXPECT_EQ(widen(stored), static_cast<long double>(value));
    } else if (i == 3) {
      EXPECT_TRUE(std::isinf(widen(stored)));
    } else if (i == 2) {
      EXPECT_TRUE(same_bits(stored, to<T>(value)));
    } else if (is_16_bit_v<T>) {
      const bool is_exact = std::is_same_v<T, Eigen::bfloat16> && i == 1;  // below half a step
      EXPECT_EQ(widen(stored), static_cast<long double>(is_exact ? 1.0 : expected[i]));
    }
    EXPECT_TRUE(same_bits(cache.values()(0, 0, i, 0), stored));
  }
}

TEST(KeyValueCache, KeepsTheBitsOfNaN) {
  float value = quiet_nan<float>();
  KeyValueCache<float> cache(1, 1, 1, 1);
  cache.append(Tensor4<float>(&value, {1, 1, 1, 1}), Tensor4<float>(&value, {1, 1, 1, 1}));
  EXPECT_TRUE(same_bits(cache.keys()(0, 0, 0, 0), value));
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

TEST(KeyValueCache, PaddingOnTheLeftIsNotAppended) {
  KeyValueCache<float> cache(3, 1, 4, 1);
  TestTensor<float> tokens({3, 1, 3, 1});
  tokens.fill([](Index b, Index, Index i, Index) { return 10 * b + i; });
  const std::vector<Index> counts = {3, 0, 1};
  cache.append(tokens.view(), tokens.view(), counts);
  EXPECT_EQ(cache.length(0), 3);
  EXPECT_EQ(cache.length(1), 0);
  EXPECT_EQ(cache.length(2), 1);
  EXPECT_EQ(cache.keys()(2, 0, 0, 0), 22);
  // The last query of each batch is its newest token.
  const auto q = queries(3, 1, 3, 1);
  const auto result = scaled_dot_product_attention(q.view(), cache, causal(), {}, Want::weights);
  EXPECT_EQ(result.weights(2, 0, 2, 0), 1);
  EXPECT_EQ(result.weights(2, 0, 1, 0), 0);  // padding
}

TEST(KeyValueCache, AppendsToOneSequence) {
  KeyValueCache<float> cache(3, 2, 4, 1);
  TestTensor<float> tokens({1, 2, 2, 1});
  tokens.fill([](Index, Index h, Index i, Index) { return 10 * h + i; });
  cache.append_to(1, tokens.view(), tokens.view());
  cache.append_to(1, tokens.view(), tokens.view());
  EXPECT_EQ(cache.lengths()[0], 0);
  EXPECT_EQ(cache.lengths()[1], 4);
  EXPECT_EQ(cache.lengths()[2], 0);
  EXPECT_EQ(cache.values()(1, 1, 3, 0), 11);
  cache.reset(1);
  EXPECT_EQ(cache.longest_length(), 0);
}

/// What a cache holds, to be compared later.
template <class Cache>
struct Snapshot {
  explicit Snapshot(const Cache& cache) : copy(cache) {}
  void expect_unchanged(const Cache& cache) const {
    EXPECT_TRUE(std::equal(cache.lengths().begin(), cache.lengths().end(), copy.lengths().begin()));
    EXPECT_TRUE(same_bits(cache.keys(), copy.keys()));
    EXPECT_TRUE(same_bits(cache.values(), copy.values()));
  }
  Cache copy;
};

TEST(KeyValueCache, RefusesTokensThatDoNotFitAndChangesNothing) {
  KeyValueCache<float> cache(2, 2, 8, 3, 4);
  const CachedTokens<float> tokens({5, 2}, 2, 3, 4);
  tokens.feed(cache, 5);
  const Snapshot<KeyValueCache<float>> before(cache);
  const auto message = [&](const Shape4& k_shape, const Shape4& v_shape, PerBatch counts) {
    TestTensor<float> k(k_shape), v(v_shape);
    const std::string text =
        message_of<ShapeError>([&] { cache.append(k.view(), v.view(), counts); });
    before.expect_unchanged(cache);
    return text;
  };
  const std::string cached =
      "; got cached keys [2, 2, 8, 3], cached values [2, 2, 8, 4], k [2, 2, 4, 3], v [2, 2, 4, 4]";
  EXPECT_EQ(message({2, 2, 4, 3}, {2, 2, 4, 4}, 4),
            "KeyValueCache::append: append past capacity: sequence 0 holds 5 of 8 tokens, 4 more "
            "do not fit" +
                cached);
  const std::vector<Index> second_too_many = {3, 7}, negative = {3, -1}, one = {3};
  EXPECT_EQ(message({2, 2, 7, 3}, {2, 2, 7, 4}, second_too_many),
            "KeyValueCache::append: append past capacity: sequence 1 holds 2 of 8 tokens, 7 more "
            "do not fit; got cached keys [2, 2, 8, 3], cached values [2, 2, 8, 4], "
            "k [2, 2, 7, 3], v [2, 2, 7, 4]");
  EXPECT_EQ(message({2, 2, 4, 3}, {2, 2, 4, 4}, negative),
            "KeyValueCache::append: counts must lie within 0 and the length of k, got -1" + cached);
  EXPECT_EQ(message({2, 2, 4, 3}, {2, 2, 4, 4}, 5),
            "KeyValueCache::append: counts must lie within 0 and the length of k, got 5" + cached);
  EXPECT_EQ(message({2, 2, 4, 3}, {2, 2, 4, 4}, one),
            "KeyValueCache::append: counts must hold one number, or one each sequence, 2, got 1" +
                cached);
  EXPECT_EQ(message({1, 2, 1, 3}, {1, 2, 1, 4}, 1),
            "KeyValueCache::append: k and v must have one batch a sequence, 2; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [1, 2, 1, 3], v [1, 2, 1, 4]");
  EXPECT_EQ(message({2, 2, 1, 3}, {2, 2, 2, 4}, 1),
            "KeyValueCache::append: k and v must have the same length; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [2, 2, 1, 3], v [2, 2, 2, 4]");
  EXPECT_EQ(message({2, 1, 1, 3}, {2, 2, 1, 4}, 1),
            "KeyValueCache::append: k and v must have the heads of the cache; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [2, 1, 1, 3], v [2, 2, 1, 4]");
  EXPECT_EQ(message({2, 2, 1, 3}, {2, 2, 1, 3}, 1),
            "KeyValueCache::append: k and v must have the dims of the cache; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [2, 2, 1, 3], v [2, 2, 1, 3]");

  EXPECT_EQ(message_of<ShapeError>([&] {
              cache.append(Tensor4<const float>(nullptr, {2, 2, 1, 3}),
                           Tensor4<const float>(nullptr, {2, 2, 1, 4}));
            }),
            "KeyValueCache::append: k is not empty, but its pointer is null; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [2, 2, 1, 3]");
  TestTensor<float> v({1, 2, 1, 4});
  EXPECT_EQ(message_of<ShapeError>([&] {
              cache.append_to(0, cache.keys().slice_batch(1, 1).slice_length(0, 1), v.view());
            }),
            "KeyValueCache::append_to: cached keys overlaps k in memory; got cached keys "
            "[2, 2, 8, 3], cached values [2, 2, 8, 4], k [1, 2, 1, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append_to(2, v.view(), v.view()); }),
            "KeyValueCache::append_to: there is no sequence 2 among the 2 of the cache");
  before.expect_unchanged(cache);
}

TEST(KeyValueCache, TakesTokensBack) {
  KeyValueCache<float> cache(2, 2, 8, 3, 4);
  const CachedTokens<float> tokens({5, 2}, 2, 3, 4);
  tokens.feed(cache, 5);
  const Snapshot<KeyValueCache<float>> before(cache);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(3); }),
            "KeyValueCache::truncate: sequence 1 holds 2 tokens and cannot be cut to 3");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(-1); }),
            "KeyValueCache::truncate: sequence 0 holds 5 tokens and cannot be cut to -1");
  const std::vector<Index> three = {1, 1, 1};
  EXPECT_EQ(message_of<ShapeError>([&] { cache.truncate(three); }),
            "KeyValueCache::truncate: needs one length, or one each sequence, 2, got 3");
  EXPECT_EQ(message_of<ShapeError>([&] { cache.reset(2); }),
            "KeyValueCache::reset: there is no sequence 2 among the 2 of the cache");
  before.expect_unchanged(cache);

  cache.truncate(PerBatch(cache.lengths()) - 1);
  EXPECT_EQ(cache.length(0), 4);
  EXPECT_EQ(cache.length(1), 1);
  cache.truncate(1);
  EXPECT_EQ(cache.length(0), 1);
  // What is appended again is what was there.
  tokens.feed(cache, 3);
  before.expect_unchanged(cache);
  cache.reset();
  EXPECT_EQ(cache.longest_length(), 0);
}

TEST(KeyValueCache, RefusesMemoryThatDoesNotFit) {
  TestTensor<float> k({2, 1, 4, 3}), v({2, 1, 5, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { KeyValueCache<float>(k.view(), v.view()); }),
            "KeyValueCache: keys and values must have the same batch and length; got keys "
            "[2, 1, 4, 3], values [2, 1, 5, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] { KeyValueCache<float>(k.view(), k.view()); }),
            "KeyValueCache: values overlaps keys in memory; got keys [2, 1, 4, 3], values "
            "[2, 1, 4, 3]");
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        KeyValueCache<float>(Tensor4<float>(k.view().data(), {2, 1, 4, 3}, {0, 0, 3, 1}), v.view());
      }),
      "KeyValueCache: an axis of keys longer than 1 has stride 0: its elements would be "
      "written over each other; got keys [2, 1, 4, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] { KeyValueCache<float>(2, -1, 4, 3); }),
            "KeyValueCache: a size must not be negative; got batch 2, num_kv_heads -1, head_dim 3, "
            "value_dim 3, capacity 4");
  EXPECT_EQ(message_of<ShapeError>([&] { KeyValueCache<float>(-2, 1, 4, 3); }),
            "KeyValueCache: a size must not be negative; got batch -2, num_kv_heads 1, head_dim 3, "
            "value_dim 3, capacity 4");
}

TEST(KeyValueCache, CallsNameTheShapesThatACacheShows) {
  KeyValueCache<float> cache(2, 2, 8, 3, 4);
  const CachedTokens<float> tokens({5, 2}, 2, 3, 4);
  tokens.feed(cache, 5);
  const auto q = queries(3, 2, 1, 3);
  TestTensor<float> out({3, 2, 1, 4});
  EXPECT_EQ(
      message_of<ShapeError>([&] { scaled_dot_product_attention(q.view(), cache, out.view()); }),
      "scaled_dot_product_attention: k must have the batch of q, or 1; got q [3, 2, 1, 3], "
      "k [2, 2, 5, 3], v [2, 2, 5, 4], out [3, 2, 1, 4]");
  EXPECT_TRUE(out.is_untouched());
  // No output may lie in the memory of the cache, not even where it holds nothing.
  TestTensor<float> k({1, 1, 8, 4}), v({1, 1, 8, 4});
  KeyValueCache<float> borrowed(k.view(), v.view());
  EXPECT_EQ(message_of<ShapeError>([&] {
              scaled_dot_product_attention(queries(1, 1, 1, 4).view(), borrowed,
                                           v.view().slice_length(6, 1));
            }),
            "scaled_dot_product_attention: out overlaps v in memory; got q [1, 1, 1, 4], "
            "k [1, 1, 0, 4], v [1, 1, 0, 4], out [1, 1, 1, 4]");
}

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

TEST(KeyValueCache, SizesOfZeroAreLegal) {
  for (const Shape4 shape :
       {Shape4{0, 2, 4, 3}, Shape4{2, 0, 4, 3}, Shape4{2, 2, 0, 3}, Shape4{2, 2, 4, 0}}) {
    KeyValueCache<float> cache(shape.batch, shape.heads, shape.length, shape.dim);
    TestTensor<float> tokens({shape.batch, shape.heads, 0, shape.dim});
    cache.append(tokens.view(), tokens.view());
    const auto q = queries(shape.batch, shape.heads, 2, shape.dim);
    TestTensor<float> out({shape.batch, shape.heads, 2, shape.dim});
    scaled_dot_product_attention(q.view(), cache, out.view(), causal_bottom_right());
    for_each_index(out.shape(), [&](Index b, Index h, Index i, Index d) {
      EXPECT_TRUE(same_bits(out(b, h, i, d), 0.0f));
    });
  }
  const KeyValueCache<float> none;
  EXPECT_EQ(none.batch(), 0);
  EXPECT_EQ(none.capacity(), 0);
  EXPECT_EQ(none.longest_length(), 0);
}

TEST(KeyValueCache, CopiesOwnWhatTheirOriginalOwns) {
  const CachedTokens<float> tokens({4}, 1, 2, 2);
  KeyValueCache<float> cache(1, 1, 8, 2);
  tokens.feed(cache, 4);
  KeyValueCache<float> copy = cache;
  EXPECT_NE(copy.keys().data(), cache.keys().data());
  EXPECT_TRUE(same_bits(copy.keys(), cache.keys()));
  const float* const data = cache.keys().data();
  const KeyValueCache<float> moved = std::move(cache);
  EXPECT_EQ(moved.keys().data(), data);
  EXPECT_EQ(moved.length(0), 4);
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

static_assert(std::is_nothrow_move_constructible_v<KeyValueCache<float>>);

}  // namespace
}  // namespace test
}  // namespace attn

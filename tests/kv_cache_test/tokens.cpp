// Tokens of a cache: what is stored, appended and taken back, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/mask.hpp"
#include "kv_cache_test/cache.hpp"
#include "support/cached_tokens.hpp"
#include "support/error_cases.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

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
  struct Case {
    Shape4 k, v;
    PerBatch counts;
    const char* rule;
  };
  const std::vector<Index> second_too_many = {3, 7}, negative = {3, -1}, one = {3};
  const Case cases[] = {
      {{2, 2, 4, 3},
       {2, 2, 4, 4},
       4,
       "append past capacity: sequence 0 holds 5 of 8 tokens, 4 more do not fit"},
      {{2, 2, 7, 3},
       {2, 2, 7, 4},
       second_too_many,
       "append past capacity: sequence 1 holds 2 of 8 tokens, 7 more do not fit"},
      {{2, 2, 4, 3},
       {2, 2, 4, 4},
       negative,
       "counts must lie within 0 and the length of k, got -1"},
      {{2, 2, 4, 3}, {2, 2, 4, 4}, 5, "counts must lie within 0 and the length of k, got 5"},
      {{2, 2, 4, 3},
       {2, 2, 4, 4},
       one,
       "counts must hold one number, or one each sequence, 2, got 1"},
      {{1, 2, 1, 3}, {1, 2, 1, 4}, 1, "k and v must have one batch a sequence, 2"},
      {{2, 2, 1, 3}, {2, 2, 2, 4}, 1, "k and v must have the same length"},
      {{2, 1, 1, 3}, {2, 2, 1, 4}, 1, "k and v must have the heads of the cache"},
      {{2, 2, 1, 3}, {2, 2, 1, 3}, 1, "k and v must have the dims of the cache"},
  };
  for (const Case& each : cases) {
    TestTensor<float> k(each.k), v(each.v);
    EXPECT_EQ(message_of<ShapeError>([&] { cache.append(k.view(), v.view(), each.counts); }),
              std::string("KeyValueCache::append: ") + each.rule +
                  "; got cached keys [2, 2, 8, 3], cached values [2, 2, 8, 4], " +
                  list_of({{"k", each.k}, {"v", each.v}}, 2));
    before.expect_unchanged(cache);
  }

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

static_assert(std::is_nothrow_move_constructible_v<KeyValueCache<float>>);

}  // namespace
}  // namespace test
}  // namespace attn

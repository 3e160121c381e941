// Public bug reports: caches of keys and values: positions, capacity, eviction, unused memory.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/kv_cache.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"
#include "support/special_memory.hpp"

namespace attn {
namespace test {
namespace {

double power_of_two(Index token) { return std::exp2(static_cast<double>(token)); }

/// Appends tokens of one sequence, head and dim: any keys, and the values value(t).
template <class Cache, class F>
void append_tokens(Cache& cache, Index first, Index count, const F& value) {
  TestTensor<double> k({1, 1, count, 1}), v({1, 1, count, 1});
  k.fill_uniform(static_cast<std::uint64_t>(first));
  v.fill([&](Index, Index, Index i, Index) { return value(first + i); });
  cache.append(k.view(), v.view());
}

/// The outputs of zero queries, which weigh all keys that they see the same.
template <class Cache>
std::vector<double> means(const Cache& cache, Index queries, const AnyMask& mask = causal()) {
  TestTensor<double> q({1, 1, queries, 1});
  q.fill_value(0);
  const auto result = scaled_dot_product_attention(q.view(), cache, mask);
  std::vector<double> rows;
  for (Index i = 0; i < queries; ++i) rows.push_back(result.output(0, 0, i, 0));
  return rows;
}

// pytorch/pytorch#144858: a decoded token sees key 0 alone.
template <class Cache>
void expect_decoded_tokens_see_their_past(Cache cache) {
  append_tokens(cache, 0, 5, power_of_two);
  expect_means<double>(means(cache, 5), {1, 1.5, 7.0 / 3, 3.75, 6.2});
  for (const Index token : {5, 6, 7}) {
    append_tokens(cache, token, 1, power_of_two);
    const double expected = (power_of_two(token + 1) - 1) / static_cast<double>(token + 1);
    expect_means<double>(means(cache, 1), {expected});
  }
  const std::vector<double> one_shot = bits_probe<double>(8, 8).outputs(causal());
  expect_means<double>(means(cache, 3), {one_shot[5], one_shot[6], one_shot[7]});
}

TEST(Cache, D15DecodedTokensSeeTheirPast) {
  expect_decoded_tokens_see_their_past(KeyValueCache<double>(1, 1, 8, 1));
  expect_decoded_tokens_see_their_past(PagedKeyValueCache<double>(4, 3, 1, 1, 1));
  expect_decoded_tokens_see_their_past(RollingKeyValueCache<double>(1, 1, 9, 1));
}

// ggml-org/ggml#1621: a prompt that is longer than the window of its cache.
TEST(Cache, D26PromptLongerThanTheWindow) {
  RollingKeyValueCache<double> cache(1, 1, 8, 1);
  append_tokens(cache, 0, 20, power_of_two);
  const std::vector<double> rows = means(cache, 20);
  expect_means<double>({rows[19]}, {130560});  // (2^20 - 2^12) / 8
  expect_means<double>(rows, bits_probe<double>(20, 20).outputs(sliding_window(7, 0)));
}

// Dao-AILab/flash-attention#772: an append to batch 2, 2^31 elements away, lands in batch 0.
TEST(Cache, D28AppendToABatchFarAway) {
  constexpr Index kFar = Index{1} << 30;
  const Shape4 shape{3, 1, 2, 4};
  const std::size_t bytes = static_cast<std::size_t>(2 * kFar + 8) * sizeof(float);
  const SparseMemory k_memory(bytes), v_memory(bytes);
  const Stride4 stride{kFar, 8, 4, 1};
  const Tensor4<float> keys(static_cast<float*>(k_memory.data()), shape, stride),
      values(static_cast<float*>(v_memory.data()), shape, stride);
  KeyValueCache<float> cache(keys, values);
  const Inputs<float> tokens({1, 1, 1, 1, 2, 2, 4, 4});
  cache.append_to(2, tokens.k.view(), tokens.v.view());
  EXPECT_TRUE(same_bits(keys.slice_batch(2, 1), tokens.k.view()));
  EXPECT_TRUE(same_bits(values.slice_batch(2, 1), tokens.v.view()));
  for_each_index({2, 1, 2, 4}, [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(keys(b, h, i, d), 0.0f);
    EXPECT_EQ(values(b, h, i, d), 0.0f);
  });

  const Tensor4<const float> q(tokens.q.view().data(), {3, 1, 2, 4}, {0, 8, 4, 1});
  const auto result = scaled_dot_product_attention(q, cache, AnyMask());
  const auto expected =
      scaled_dot_product_attention(tokens.q.view(), tokens.k.view(), tokens.v.view(), AnyMask());
  EXPECT_TRUE(same_bits(result.output.view().slice_batch(2, 1), expected.output.view()));
  for_each_index({2, 1, 2, 4}, [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(result.output(b, h, i, d), 0.0f);  // sequences without tokens
  });
}

// microsoft/onnxruntime#26674: what the cache's memory held before shows in the output.
TEST(Cache, D46MemoryBehindTheTokensDoesNotCount) {
  const Sizes sizes{2, 4, 2, 2, 4, 4, 16, 16};
  const Inputs<float> in(sizes);
  const auto expected =
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), AnyMask(causal()));
  TestTensor<float> keys({2, 2, 128, 16}), values({2, 2, 128, 16});
  for (std::uint64_t run = 0; run < 50; ++run) {
    if (run % 2 == 0) {
      keys.fill_value(quiet_nan<float>());
      values.fill_value(infinity<float>());
    } else {
      keys.fill_uniform(run, 1e30);
      values.fill_uniform(run, 1e30);
    }
    KeyValueCache<float> cache(keys.view(), values.view());
    cache.append(in.k.view(), in.v.view());
    const auto result = scaled_dot_product_attention(in.q.view(), cache, AnyMask(causal()));
    ASSERT_TRUE(same_bits(result.output.view(), expected.output.view())) << "run " << run;
  }
}

// huggingface/transformers#37574: a sliding cache drops a token one step too early.
TEST(Cache, D52TokensStayForTheWholeWindow) {
  for (Index prefill = 1; prefill <= 10; ++prefill) {
    SCOPED_TRACE(prefill);
    RollingKeyValueCache<double> cache(1, 1, 8, 1);
    append_tokens(cache, 0, prefill, power_of_two);
    for (Index token = prefill; token <= 10; ++token) {
      append_tokens(cache, token, 1, power_of_two);
      const Index first = (std::max)(Index{0}, token - 7);
      const double expected =
          (power_of_two(token + 1) - power_of_two(first)) / static_cast<double>(token + 1 - first);
      expect_means<double>(means(cache, 1), {expected});
      if (token == 7) {
        EXPECT_DOUBLE_EQ(expected, 31.875);
      }
      if (token == 10) {
        EXPECT_DOUBLE_EQ(expected, 255);
      }
    }
  }
}

// huggingface/candle#3035: appending past the capacity is not noticed.
TEST(Cache, D53NothingFitsBehindTheCapacity) {
  TestTensor<float> keys({1, 1, 8, 2}, Layout::padded), values({1, 1, 8, 2}, Layout::padded);
  const Inputs<float> tokens({1, 1, 1, 1, 1, 9, 2, 2});
  KeyValueCache<float> cache(keys.view(), values.view());
  const auto append = [&](Index count) {
    cache.append(tokens.k.view().slice_length(0, count), tokens.v.view().slice_length(0, count));
  };
  EXPECT_THROW(append(9), ShapeError);
  EXPECT_TRUE(keys.is_untouched());
  append(5);
  const auto state = [&] {
    return scaled_dot_product_attention(tokens.q.view(), cache, AnyMask()).output;
  };
  const Tensor4Buffer<float> before = state();
  EXPECT_THROW(append(4), ShapeError);
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_TRUE(same_bits(state().view(), before.view()));
  append(3);
  EXPECT_EQ(cache.length(0), 8);
  EXPECT_THROW(append(1), ShapeError);
  EXPECT_EQ(cache.length(0), 8);
  EXPECT_TRUE(keys.gaps_are_untouched());
  EXPECT_TRUE(values.gaps_are_untouched());
}

// google/gemma.cpp#608: rows of 72 elements lie 80 apart, and a prefill in chunks goes wrong.
TEST(Cache, D54PrefillInChunksOverPaddedRows) {
  constexpr Index kTokens = 150, kChunk = 32, kCapacity = 200;
  const Sizes all{1, 4, 4, 4, kTokens + 4, kTokens + 4, 72, 72};
  const Inputs<float> in(all);
  const Stride4 padded{4 * 80 * kCapacity, 80 * kCapacity, 80, 1};
  TestTensor<float> keys({1, 4, kCapacity, 72}, padded), values({1, 4, kCapacity, 72}, padded);
  KeyValueCache<float> cache(keys.view(), values.view());
  Tensor4Buffer<float> out(all.out());
  for (Index first = 0; first < kTokens + 4;) {
    const Index count = first < kTokens ? (std::min)(kChunk, kTokens - first) : 1;
    cache.append(in.k.view().slice_length(first, count), in.v.view().slice_length(first, count));
    scaled_dot_product_attention(in.q.view().slice_length(first, count), cache,
                                 out.view().slice_length(first, count), AnyMask(causal()));
    first += count;
  }
  EXPECT_TRUE(keys.gaps_are_untouched());
  EXPECT_TRUE(values.gaps_are_untouched());

  const Formula is_causal = keeps([](Index, Index, Index i, Index j) { return j <= i; });
  const Tensor4Buffer<double> q = in_double(in.q.view()), k = in_double(in.k.view()),
                              v = in_double(in.v.view());
  const Answer<double> exact = answer_in<double>(q, k, v, is_causal, {});
  const Answer<float> plain = answer_in<float>(q, k, v, is_causal, {});
  // The bar of oracle.hpp.
  const long double floor = epsilon<float>() * (6 + 3 * exact.largest_score);
  expect_within("out", out.view(), exact.out.view(),
                2 * largest_difference(plain.out.view(), exact.out.view()) + floor);
}

// ml-explore/mlx-lm#1512: taking tokens back from a full ring only moves counters.
TEST(Cache, D55EvictedTokensDoNotComeBack) {
  const auto value = [](Index token) { return power_of_two(token); };
  RollingKeyValueCache<double> tight(1, 1, 8, 1);
  append_tokens(tight, 0, 20, value);
  const std::vector<double> before = means(tight, 1);
  EXPECT_THROW(tight.truncate(17), ShapeError);  // tokens 10 and 11 are gone
  EXPECT_EQ(tight.length(0), 20);
  EXPECT_EQ(means(tight, 1), before);

  RollingKeyValueCache<double> roomy(1, 1, 8, 1, 1, 4);
  for (Index token = 0; token < 20; ++token) append_tokens(roomy, token, 1, value);
  roomy.truncate(17);
  append_tokens(roomy, 17, 1, [](Index) { return std::exp2(30.0); });
  // Tokens 10 to 16 and the new one.
  expect_means<double>(means(roomy, 1),
                       {(power_of_two(17) - power_of_two(10) + std::exp2(30)) / 8});
}

// microsoft/onnxruntime#20521: batches with pasts of different lengths give NaN.
TEST(Cache, D56EverySequenceHasItsLength) {
  const std::vector<Index> pasts[] = {{3, 1}, {0, 5, 2}};
  for (const std::vector<Index>& past : pasts) {
    const Index batch = static_cast<Index>(past.size());
    TestTensor<float> keys({batch, 2, 8, 16}), values({batch, 2, 8, 16});  // hold NaN
    KeyValueCache<float> cache(keys.view(), values.view());
    const Inputs<float> in({batch, 4, 2, 2, 1, 8, 16, 16});
    for (Index b = 0; b < batch; ++b) {
      const Index count = past[static_cast<std::size_t>(b)];
      cache.append_to(b, in.k.view().slice_batch(b, 1).slice_length(0, count),
                      in.v.view().slice_batch(b, 1).slice_length(0, count));
    }
    cache.append(in.k.view().slice_length(7, 1), in.v.view().slice_length(7, 1));
    const auto result = scaled_dot_product_attention(in.q.view(), cache, AnyMask(causal()));
    for (Index b = 0; b < batch; ++b) {
      KeyValueCache<float> alone(1, 2, 8, 16);
      const Index count = past[static_cast<std::size_t>(b)];
      const Tensor4<const float> k = in.k.view().slice_batch(b, 1),
                                 v = in.v.view().slice_batch(b, 1);
      alone.append(k.slice_length(0, count), v.slice_length(0, count));
      alone.append(k.slice_length(7, 1), v.slice_length(7, 1));
      const auto single =
          scaled_dot_product_attention(in.q.view().slice_batch(b, 1), alone, AnyMask(causal()));
      // The number of keys differs, and so may the bits: of scores below 12, from sums of 16 terms.
      for_each_index(single.output.shape(), [&](Index, Index h, Index i, Index d) {
        EXPECT_NEAR(result.output(b, h, i, d), single.output(0, h, i, d), 0x1p-23 * (6 + 3 * 12));
      });
    }
  }
}

// keras-team/keras-hub#2861: ALiBi of a decoded token counts from 0.
TEST(Cache, D61AlibiCountsFromTheAbsolutePosition) {
  const std::vector<double> slopes = {0.5};
  KeyValueCache<double> cache(1, 1, 8, 1);
  append_tokens(cache, 0, 3, [](Index token) { return static_cast<double>(token); });
  append_tokens(cache, 3, 1, [](Index token) { return static_cast<double>(token); });
  EXPECT_NEAR(means(cache, 1, alibi(slopes))[0], 2.08457649, 5e-9);  // the digits that are given
}

}  // namespace
}  // namespace test
}  // namespace attn

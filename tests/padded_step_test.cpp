// Steps of layers over prompts that are padded on the left: the padding leaves no trace.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kModel = 24, kKvHeads = 2, kHeadDim = 8, kValueDim = 5, kBatch = 4, kLength = 6;

AttentionConfig config() {
  AttentionConfig config = config_of(kModel, 6, kKvHeads);
  config.head_dim = kHeadDim;
  config.value_dim = kValueDim;
  return config;
}

using Counts = std::vector<Index>;

/// The next kLength tokens of each sequence, NaN where they are padding.
TestTensor<float> prompts(const Counts& counts, std::uint64_t seed) {
  TestTensor<float> x({kBatch, 1, kLength, kModel});
  x.fill([&](Index b, Index h, Index i, Index d) {
    return i < kLength - counts[static_cast<std::size_t>(b)]
               ? quiet_nan<float>()
               : to<float>(uniform(seed, linear_index(x.shape(), b, h, i, d)));
  });
  return x;
}

/// Each sequence of a batch has the bits of itself alone, and is what it is without padding.
template <class Cache, class M>
void expect_bits_of_each_alone(const Cache& of_all, const Cache& of_one, const M& mask,
                               const RotaryEmbedding& rotary) {
  GroupedQueryAttention<float> layer(config(), 3);
  const std::vector<float> gamma = {1, 2, 3, 4, 5, 6, 7, 8};
  layer.set_query_key_norm({gamma, 1e-5}, {gamma, 1e-5});
  const Counts kRounds[] = {{6, 0, 2, 5}, {1, 1, 1, 1}, {0, 6, 3, 6}, {2, 4, 6, 1}};
  Cache cache(of_all);
  std::vector<Cache> padded(kBatch, of_one), plain(kBatch, of_one);
  std::uint64_t seed = 0;
  for (const Counts& counts : kRounds) {
    const TestTensor<float> x = prompts(counts, ++seed);
    TestTensor<float> out(x.shape());
    layer.step(x.view(), cache, out.view(), counts, mask, {}, &rotary);
    for (Index b = 0; b < kBatch; ++b) {
      SCOPED_TRACE("sequence " + std::to_string(b) + " of step " + std::to_string(seed));
      const Index count = counts[static_cast<std::size_t>(b)], padding = kLength - count;
      const Tensor4<const float> mine = x.view().slice_batch(b, 1);
      const Tensor4<const float> result =
          Tensor4<const float>(out.view()).slice_batch(b, 1).slice_length(padding, count);
      TestTensor<float> alone({1, 1, kLength, kModel}), short_alone({1, 1, count, kModel});
      Cache& padded_cache = padded[static_cast<std::size_t>(b)];
      layer.step(mine, padded_cache, alone.view(), count, mask, {}, &rotary);
      Cache& plain_cache = plain[static_cast<std::size_t>(b)];
      layer.step(mine.slice_length(padding, count), plain_cache, short_alone.view(), mask, {},
                 &rotary);
      EXPECT_TRUE(same_bits(result, alone.view().slice_length(padding, count)));
      // Fewer rows may be summed in another order: at most 32 terms below 1, three times.
      for_each_index(short_alone.shape(), [&](Index, Index, Index i, Index d) {
        EXPECT_NEAR(result(0, 0, i, d), short_alone(0, 0, i, d), 3 * 32 * 0x1p-24);
      });
      EXPECT_EQ(cache.length(b), plain_cache.length(0));
      for (Index i = 0; i < padding; ++i) {
        for (Index d = 0; d < kModel; ++d) {
          EXPECT_EQ(out(b, 0, i, d), layer.output_weights().bias[d]);
        }
      }
    }
  }
}

TEST(PaddedStep, EverySequenceIsAsIfItHadComeAlone) {
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  for (const AnyMask& mask : {AnyMask(causal()), AnyMask(causal() & alibi()), AnyMask()}) {
    expect_bits_of_each_alone(KeyValueCache<float>(kBatch, kKvHeads, 32, kHeadDim, kValueDim),
                              KeyValueCache<float>(1, kKvHeads, 32, kHeadDim, kValueDim), mask,
                              rotary);
    expect_bits_of_each_alone(
        PagedKeyValueCache<float>(40, 4, kBatch, kKvHeads, kHeadDim, kValueDim),
        PagedKeyValueCache<float>(10, 4, 1, kKvHeads, kHeadDim, kValueDim), mask, rotary);
    expect_bits_of_each_alone(RollingKeyValueCache<float>(kBatch, kKvHeads, 4, kHeadDim, kValueDim),
                              RollingKeyValueCache<float>(1, kKvHeads, 4, kHeadDim, kValueDim),
                              mask, rotary);
  }
}

// Padding before the first token has no place in a table that begins at 0.
TEST(PaddedStep, TurnsRealTokensAlone) {
  TestTensor<float> cosines({1, 1, 30, kHeadDim / 2}), sines(cosines.shape());
  cosines.fill_uniform(1);
  sines.fill_uniform(2);
  const auto rotary = RotaryEmbedding::from_tables(kHeadDim, RotaryPairing::interleaved,
                                                   cosines.view(), sines.view());
  expect_bits_of_each_alone(KeyValueCache<float>(kBatch, kKvHeads, 32, kHeadDim, kValueDim),
                            KeyValueCache<float>(1, kKvHeads, 32, kHeadDim, kValueDim), causal(),
                            rotary);
}

TEST(PaddedStep, AllocatesNothingWithAWorkspace) {
  const GroupedQueryAttention<float> layer(config(), 3);
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split);
  const Counts counts = {3, 1, 0, 2};
  const TestTensor<float> x = prompts(counts, 1);
  TestTensor<float> out(x.shape());
  RollingKeyValueCache<float> cache(kBatch, kKvHeads, 4, kHeadDim, kValueDim, kLength);
  AttentionOptions options;
  std::vector<char> memory(layer.step_workspace_bytes(x.view(), cache, causal()));
  options.workspace = {memory.data(), memory.size()};
  allocations().reset();
  for (int step = 0; step < 10; ++step) {
    layer.step(x.view(), cache, out.view(), counts, causal(), options, &rotary);
  }
  EXPECT_EQ(allocations().count.load(), 0u);
  EXPECT_EQ(cache.length(0), 30);
}

TEST(PaddedStep, RefusesCountsThatDoNotFitAndChangesNothing) {
  const GroupedQueryAttention<float> layer(config(), 3);
  const Counts all = {6, 6, 6, 6}, few = {1, 2, 3}, more = {1, 7, 1, 1}, negative = {1, -1, 1, 1};
  const TestTensor<float> x = prompts(all, 1);
  TestTensor<float> out(x.shape());
  KeyValueCache<float> cache(kBatch, kKvHeads, 8, kHeadDim, kValueDim);
  const auto step = [&](const Counts& counts) {
    return message_of<ShapeError>([&] { layer.step(x.view(), cache, out.view(), counts); });
  };
  const std::string got = "; got x [4, 1, 6, 24], out [4, 1, 6, 24]";
  EXPECT_EQ(step(few),
            "GroupedQueryAttention::step: counts must hold one number, or one each sequence, 4, "
            "got 3" +
                got);
  EXPECT_EQ(
      step(more),
      "GroupedQueryAttention::step: counts must lie within 0 and the length of x, got 7" + got);
  EXPECT_EQ(
      step(negative),
      "GroupedQueryAttention::step: counts must lie within 0 and the length of x, got -1" + got);
  EXPECT_EQ(cache.longest_length(), 0);
  EXPECT_TRUE(out.is_untouched());
  layer.step(x.view(), cache, out.view(), all);
  const TestTensor<float> before = out;
  const Counts too_many = {2, 3, 2, 2};
  EXPECT_THROW(layer.step(x.view(), cache, out.view(), too_many), ShapeError);
  EXPECT_EQ(cache.length(1), 6);
  EXPECT_TRUE(same_bits(out.view(), before.view()));
  KeyValueCache<float> one(1, kKvHeads, 8, kHeadDim, kValueDim);
  EXPECT_EQ(message_of<ShapeError>([&] { layer.step(x.view(), one, out.view(), 2); }),
            "GroupedQueryAttention::step: x must have one batch a sequence of the cache" + got);
}

}  // namespace
}  // namespace test
}  // namespace attn

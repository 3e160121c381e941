// Layers whose tokens stand at positions of their own: every pass, against its pieces.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/attention_block.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kModel = 24, kHeads = 6, kKvHeads = 2, kHeadDim = 12, kValueDim = 5, kPairs = 6;
constexpr Index kSections[] = {1, 2, 3};
constexpr double kBase = 50;

AttentionConfig config() {
  AttentionConfig config = config_of(kModel, kHeads, kKvHeads);
  config.head_dim = kHeadDim;
  config.value_dim = kValueDim;
  return config;
}
RotaryEmbedding sectioned() {
  RotaryOptions options;
  options.sections = kSections;
  return RotaryEmbedding(kHeadDim, RotaryPairing::half_split, kBase, options);
}
TestTensor<float> tokens(Index batch, Index length, std::uint64_t seed = 1) {
  TestTensor<float> x({batch, 1, length, kModel});
  x.fill_uniform(seed, 2);
  return x;
}

/// Prompts that differ: some text, an image of 2 columns, text again. All tokens of an image have
/// the time of its start; text stands behind the furthest position so far, in all sections.
TestTensor<std::int64_t> prompt_positions(Index batch, Index length) {
  TestTensor<std::int64_t> positions({batch, 1, length, 3});
  positions.fill([](Index b, Index, Index i, Index s) -> std::int64_t {
    const Index image = 2 + b, end = image + 6;
    if (i < image) return i;
    if (i >= end) return i - end + image + 3;
    return s == 0 ? image : s == 1 ? image + (i - image) / 2 : image + (i - image) % 2;
  });
  return positions;
}

using Positions = TestTensor<std::int64_t>;

/// The layer in plain double loops: queries at query_at, keys at key_at; keys from `causal_past` +
/// query index on are hidden.
struct Book {
  const LayerMemory<float>& memory;

  double project(const TestTensor<float>& x, const TestTensor<float>& weight,
                 const TestTensor<float>& bias, Index b, Index i, Index row) const {
    double sum = static_cast<double>(bias(0, 0, 0, row));
    for (Index d = 0; d < kModel; ++d) {
      sum += static_cast<double>(x(b, 0, i, d)) * static_cast<double>(weight(0, 0, row, d));
    }
    return sum;
  }
  std::vector<double> turned(const TestTensor<float>& x, const TestTensor<float>& weight,
                             const TestTensor<float>& bias, Index b, Index i, Index head,
                             const Positions& at) const {
    std::vector<double> row;
    for (Index d = 0; d < kHeadDim; ++d) {
      row.push_back(project(x, weight, bias, b, i, head * kHeadDim + d));
    }
    for (Index pair = 0; pair < kPairs; ++pair) {
      const Index section = pair < 1 ? 0 : pair < 3 ? 1 : 2;
      const Index batch = at.shape().batch == 1 ? 0 : b;
      const double angle = static_cast<double>(at(batch, 0, i, at.shape().dim == 1 ? 0 : section)) *
                           std::pow(kBase, -2 * static_cast<double>(pair) / kHeadDim);
      double &first = row[static_cast<std::size_t>(pair)],
             &second = row[static_cast<std::size_t>(pair + kPairs)];
      const double a = first, c = second;
      first = a * std::cos(angle) - c * std::sin(angle);
      second = c * std::cos(angle) + a * std::sin(angle);
    }
    return row;
  }

  TestTensor<double> operator()(const TestTensor<float>& query, const Positions& query_at,
                                const TestTensor<float>& key, const Positions& key_at,
                                Index causal_past) const {
    const Index batch = query.shape().batch, queries = query.shape().length,
                keys = key.shape().length;
    TestTensor<double> out({batch, 1, queries, kModel});
    std::vector<double> heads(static_cast<std::size_t>(kHeads * kValueDim));
    for (Index b = 0; b < batch; ++b) {
      for (Index i = 0; i < queries; ++i) {
        for (Index h = 0; h < kHeads; ++h) {
          const Index shared = h / (kHeads / kKvHeads);
          const auto q = turned(query, memory.query, memory.query_bias, b, i, h, query_at);
          double denominator = 0;
          std::vector<double> sums(kValueDim, 0.0);
          for (Index j = 0; j < keys && j <= i + causal_past; ++j) {
            const auto k = turned(key, memory.key, memory.key_bias, b, j, shared, key_at);
            double score = 0;
            for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
            const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
            denominator += weight;
            for (Index d = 0; d < kValueDim; ++d) {
              sums[static_cast<std::size_t>(d)] +=
                  weight *
                  project(key, memory.value, memory.value_bias, b, j, shared * kValueDim + d);
            }
          }
          for (Index d = 0; d < kValueDim; ++d) {
            heads[static_cast<std::size_t>(h * kValueDim + d)] =
                sums[static_cast<std::size_t>(d)] / denominator;
          }
        }
        for (Index o = 0; o < kModel; ++o) {
          double sum = static_cast<double>(memory.output_bias(0, 0, 0, o));
          for (Index d = 0; d < kHeads * kValueDim; ++d) {
            sum +=
                heads[static_cast<std::size_t>(d)] * static_cast<double>(memory.output(0, 0, o, d));
          }
          out(b, 0, i, o) = sum;
        }
      }
    }
    return out;
  }
};

/// Stages of at most 30 terms below 4 each, three of them, and scores of up to 10 whose error the
/// exponential passes on: 200 epsilon of the largest output, as in the tests of step.
void expect_close(const Tensor4<const float>& actual, const Tensor4<const double>& expected) {
  const long double bar = 200 * epsilon<float>() * (1 + largest_magnitude(expected));
  EXPECT_LE(largest_difference(actual, expected), bar);
}

struct LayerPositions : ::testing::Test {
  LayerMemory<float> memory{config()};
  RotaryEmbedding rotary = sectioned();
  GroupedQueryAttention<float> plain = memory.layer(), layer = memory.layer();
  Book book{memory};

  LayerPositions() {
    HeadTransform<float> transform;
    transform.rotary = &rotary;
    layer.set_head_transform(transform);
  }
};

TEST_F(LayerPositions, OfSelfAttention) {
  const auto x = tokens(3, 14);
  const Positions at = prompt_positions(3, 14);
  const auto expected = book(x, at, x, at, 0);
  TestTensor<float> out(x.shape()), of_call(x.shape());
  layer.forward(x.view(), out.view(), causal(), {}, {}, nullptr, at.view());
  expect_close(out.view(), expected.view());
  plain.forward(x.view(), of_call.view(), causal(), {}, {}, &rotary, at.view());
  EXPECT_TRUE(same_bits(of_call.view(), out.view()));
  // What the positions change is more than the bar.
  layer.forward(x.view(), of_call.view(), causal());
  EXPECT_GT(largest_difference(of_call.view(), out.view()), 0.01L);
}

TEST_F(LayerPositions, OfCrossAttention) {
  const auto query = tokens(2, 5), key = tokens(2, 9, 7);
  Positions query_at({1, 1, 5, 1}), key_at = prompt_positions(2, 9);
  query_at.fill([](Index, Index, Index i, Index) { return 20 - 3 * i; });
  const auto expected = book(query, query_at, key, key_at, 9);
  TestTensor<float> out(query.shape());
  layer.forward(query.view(), key.view(), key.view(), out.view(), no_mask(), {}, {}, nullptr,
                query_at.view(), key_at.view());
  expect_close(out.view(), expected.view());
  // One of the two alone: the others stand where they do without.
  Positions counted({1, 1, 9, 1});
  counted.fill([](Index, Index, Index i, Index) { return i; });
  layer.forward(query.view(), key.view(), key.view(), out.view(), no_mask(), {}, {}, nullptr,
                query_at.view());
  expect_close(out.view(), book(query, query_at, key, counted, 9).view());
}

// A batch of prompts whose images begin at different tokens, then text token by token.
TEST_F(LayerPositions, OfStepsOfABatchWhosePromptsDiffer) {
  const auto x = tokens(3, 20);
  const Positions at = prompt_positions(3, 20);
  const auto expected = book(x, at, x, at, 0);
  const auto stepped = [&](auto cache, Index prompt) {
    TestTensor<float> out(x.shape());
    for (Index i = 0; i < 20; i += i == 0 ? prompt : 1) {
      const Index count = i == 0 ? prompt : 1;
      layer.step(x.view().slice_length(i, count), cache, out.view().slice_length(i, count),
                 causal(), {}, nullptr, at.view().slice_length(i, count));
    }
    return out;
  };
  for (const Index prompt : {12, 3}) {
    const auto out = stepped(KeyValueCache<float>(3, kKvHeads, 32, kHeadDim, kValueDim), prompt);
    expect_close(out.view(), expected.view());
    const auto paged =
        stepped(PagedKeyValueCache<float>(20, 4, 3, kKvHeads, kHeadDim, kValueDim), prompt);
    EXPECT_TRUE(same_bits(paged.view(), out.view()));
  }
}

TEST_F(LayerPositions, OfPaddedPrompts) {
  const Index kLength = 10;
  const std::vector<Index> counts = {10, 4, 7};
  const auto x = tokens(3, kLength);
  const Positions at = prompt_positions(3, kLength);  // those of padding are not read
  TestTensor<float> out(x.shape());
  KeyValueCache<float> cache(3, kKvHeads, 16, kHeadDim, kValueDim);
  layer.step(x.view(), cache, out.view(), counts, causal(), {}, nullptr, at.view());
  for (Index b = 0; b < 3; ++b) {
    const Index count = counts[static_cast<std::size_t>(b)], first = kLength - count;
    TestTensor<float> real({1, 1, count, kModel});
    real.fill([&](Index, Index, Index i, Index d) { return x(b, 0, first + i, d); });
    Positions real_at({1, 1, count, 3});
    real_at.fill([&](Index, Index, Index i, Index s) { return at(b, 0, first + i, s); });
    expect_close(Tensor4<const float>(out.view()).slice_batch(b, 1).slice_length(first, count),
                 book(real, real_at, real, real_at, 0).view());
  }
}

TEST_F(LayerPositions, OfAppendAndAttend) {
  const auto key = tokens(2, 9, 7), query = tokens(2, 3);
  const Positions key_at = prompt_positions(2, 9);
  Positions query_at({2, 1, 3, 3});
  query_at.fill([](Index b, Index, Index i, Index s) { return 5 * b + 2 * i - s; });
  KeyValueCache<float> cache(2, kKvHeads, 16, kHeadDim, kValueDim);
  TestTensor<float> out(query.shape());
  layer.append(key.view(), key.view(), cache, {}, nullptr, key_at.view());
  layer.attend(query.view(), cache, out.view(), no_mask(), {}, nullptr, query_at.view());
  expect_close(out.view(), book(query, query_at, key, key_at, 9).view());
}

TEST_F(LayerPositions, OfABlock) {
  const auto x = tokens(2, 14);
  const Positions at = prompt_positions(2, 14);
  const AttentionBlock<float> block(layer);
  TestTensor<float> out(x.shape()), expected(x.shape());
  block.forward(x.view(), out.view(), causal(), {}, {}, BlockMode::evaluation, at.view());
  layer.forward(x.view(), expected.view(), causal(), {}, {}, nullptr, at.view());
  expected.fill(
      [&](Index b, Index h, Index i, Index d) { return expected(b, h, i, d) + x(b, h, i, d); });
  layer_norm(expected.view(), LayerNormWeights<float>{}, expected.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  block.forward(x.view(), x.view(), x.view(), out.view(), causal(), {}, {}, BlockMode::evaluation,
                at.view(), at.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

// Positions that count tokens have the bits of none, and so has any number of threads.
TEST_F(LayerPositions, ThatCountTokensChangeNothing) {
  const auto x = tokens(2, 14);
  TestTensor<std::int32_t> at({1, 1, 14, 1});
  at.fill([](Index, Index, Index i, Index) { return i; });
  TestTensor<float> out(x.shape()), expected(x.shape());
  KeyValueCache<float> cache(2, kKvHeads, 16, kHeadDim, kValueDim), other = cache;
  layer.step(x.view(), cache, expected.view(), causal());
  ThreadPool pool(3);
  AttentionOptions options;
  options.executor = &pool;
  layer.step(x.view(), other, out.view(), causal(), options, nullptr, at.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  EXPECT_TRUE(same_bits(other.keys(), cache.keys()));
}

// LongRoPE: where a sequence grows beyond the trained length, it begins anew with the long factors.
TEST(LongRopeInSteps, BeginsAnewWhereTheLengthIsCrossed) {
  constexpr Index kTrained = 8, kLength = 13;
  const std::vector<double> short_factors(kPairs, 1), long_factors = {1, 1.5, 2, 4, 8, 16};
  const auto made_for = [&](Index length) {
    RotaryOptions options;
    options.scaling = RotaryScaling::longrope(short_factors, long_factors, 4, kTrained, length);
    return RotaryEmbedding(kHeadDim, RotaryPairing::half_split, kBase, options);
  };
  const RotaryEmbedding of_short = made_for(kTrained), of_long = made_for(kTrained + 1);
  const LayerMemory<float> memory(config());
  const auto layer = memory.layer();
  const auto x = tokens(1, kLength);
  TestTensor<float> out(x.shape()), within({1, 1, kTrained, kModel}), beyond(x.shape());
  layer.forward(x.view().slice_length(0, kTrained), within.view(), causal(), {}, {}, &of_short);
  layer.forward(x.view(), beyond.view(), causal(), {}, {}, &of_long);

  KeyValueCache<float> cache(1, kKvHeads, 16, kHeadDim, kValueDim);
  const auto step = [&](Index first, Index count, const RotaryEmbedding& rotary) {
    layer.step(x.view().slice_length(first, count), cache, out.view().slice_length(first, count),
               causal(), {}, &rotary);
  };
  step(0, 3, of_short);
  for (Index i = 3; i < kTrained; ++i) step(i, 1, of_short);
  const long double bar = 200 * epsilon<float>() * (1 + largest_magnitude(beyond.view()));
  EXPECT_LE(largest_difference(out.view().slice_length(0, kTrained), within.view()), bar);
  cache.reset();
  step(0, kTrained + 1, of_long);
  for (Index i = kTrained + 1; i < kLength; ++i) step(i, 1, of_long);
  EXPECT_LE(largest_difference(out.view(), beyond.view()), bar);

  // Going on with keys of the short factors is another function.
  cache.reset();
  step(0, kTrained, of_short);
  step(kTrained, kLength - kTrained, of_long);
  const auto last = [](TestTensor<float>& all) { return all.view().slice_length(kLength - 1, 1); };
  EXPECT_GT(largest_difference(last(out), last(beyond)), 0.001L);
}

TEST_F(LayerPositions, AllocateNothingWithAWorkspace) {
  const auto x = tokens(2, 6);
  const Positions at = prompt_positions(2, 6);
  TestTensor<float> out(x.shape());
  KeyValueCache<float> cache(2, kKvHeads, 16, kHeadDim, kValueDim);
  AttentionOptions options;
  std::vector<char> scratch(layer.step_workspace_bytes(x.view(), cache, causal()));
  options.workspace = {scratch.data(), scratch.size()};
  allocations().reset();
  layer.step(x.view(), cache, out.view(), causal(), options, nullptr, at.view());
  layer.step(x.view(), cache, out.view(), 3, causal(), options, nullptr, at.view());
  EXPECT_EQ(allocations().count.load(), 0u);
}

TEST_F(LayerPositions, ThatDoNotFitAreRefusedAndNothingChanges) {
  const auto x = tokens(2, 6), key = tokens(1, 9, 7);
  TestTensor<float> out(x.shape());
  Positions four({2, 1, 4, 3}), two({2, 1, 6, 2}), nine({2, 1, 9, 1}), fit({2, 1, 6, 3});
  KeyValueCache<float> cache(2, kKvHeads, 16, kHeadDim, kValueDim);
  const std::string rule =
      "positions must be [batch of x or 1, 1, length of x, 1 or the 3 sections of the rotary "
      "embedding]; got x [2, 1, 6, 24], out [2, 1, 6, 24], ";
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.forward(x.view(), out.view(), causal(), {}, {}, nullptr, four.view());
            }),
            "GroupedQueryAttention::forward: " + rule + "positions [2, 1, 4, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.step(x.view(), cache, out.view(), causal(), {}, nullptr, two.view());
            }),
            "GroupedQueryAttention::step: " + rule +
                "cached keys [2, 2, 6, 12], cached values [2, 2, 6, 5], positions [2, 1, 6, 2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.forward(x.view(), key.view(), key.view(), out.view(), no_mask(), {}, {},
                            nullptr, fit.view(), nine.view());
            }),
            "GroupedQueryAttention::forward: key_positions must be [batch of key or 1, 1, length "
            "of key, 1 or the 3 sections of the rotary embedding]; got query [2, 1, 6, 24], key "
            "[1, 1, 9, 24], value [1, 1, 9, 24], out [2, 1, 6, 24], query_positions [2, 1, 6, 3], "
            "key_positions [2, 1, 9, 1]");
  EXPECT_EQ(message_of<OptionError>([&] {
              plain.forward(x.view(), out.view(), causal(), {}, {}, nullptr, fit.view());
            }),
            "GroupedQueryAttention::forward: positions are given, but neither the call nor the "
            "layer has a rotary embedding that would turn by them; got x [2, 1, 6, 24], out [2, 1, "
            "6, 24], positions [2, 1, 6, 3]");
  // In memory that the call writes to.
  AttentionOptions options;
  std::vector<std::int64_t> scratch(layer.step_workspace_bytes(x.view(), cache) / 8 + 36);
  options.workspace = {scratch.data(), scratch.size() * 8};
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.step(x.view(), cache, out.view(), no_mask(), options, nullptr,
                         Tensor4<const std::int64_t>(scratch.data(), {2, 1, 6, 3}));
            }).substr(0, 76),
            "GroupedQueryAttention::step: options.workspace overlaps positions in memory;");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.forward(
                  x.view(), out.view(), no_mask(), {}, {}, nullptr,
                  Tensor4<const std::int32_t>(
                      reinterpret_cast<const std::int32_t*>(out.view().data()), {2, 1, 6, 3}));
            }).substr(0, 68),
            "GroupedQueryAttention::forward: out overlaps positions in memory; go");
  EXPECT_TRUE(out.is_untouched());
  EXPECT_EQ(cache.longest_length(), 0);
}

}  // namespace
}  // namespace test
}  // namespace attn

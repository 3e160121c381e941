// Layers of some heads of a model: their outputs add up to that of all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rotary.hpp"
#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kModel = 24, kHeads = 8, kKvHeads = 4, kGroup = 2, kHeadDim = 6, kValueDim = 5;

AttentionConfig config() {
  AttentionConfig config = config_of(kModel, kHeads, kKvHeads);
  config.head_dim = kHeadDim;
  config.value_dim = kValueDim;
  return config;
}

TestTensor<float> tokens(Index length, std::uint64_t seed = 1) {
  TestTensor<float> x({2, 1, length, kModel});
  x.fill_uniform(seed, 2);
  return x;
}

/// Which heads each part has.
struct Heads {
  Index first, count;
};
const std::vector<std::vector<Heads>> kSplits = {
    {{0, 2}, {2, 2}}, {{3, 1}, {0, 1}, {1, 2}}, {{0, 4}}};

/// Adds up the outputs of parts, in float, as machines that exchange them do.
struct Sum {
  TestTensor<float> total, part;

  explicit Sum(const Shape4& shape) : total(shape), part(shape) {
    total.fill([](Index, Index, Index, Index) { return 0; });
  }
  void add() {
    for_each_index(total.shape(), [&](Index b, Index h, Index i, Index d) {
      total(b, h, i, d) += part(b, h, i, d);
    });
  }
};

/// How far the sum of up to 3 parts may lie from `whole`: sums of at most 40 terms in another
/// order, of heads whose projections (24 terms), scores and weights are sums in another order too.
/// Less than 200 epsilon of the largest output in all, as between chunks of a step.
void expect_sum(const TestTensor<float>& sum, const TestTensor<float>& whole) {
  const long double bar = 200 * epsilon<float>() * (1 + largest_magnitude(whole.view()));
  EXPECT_LE(largest_difference(sum.view(), whole.view()), bar);
}

TEST(LayerHeads, OutputsOfPartsAddUp) {
  for (const Layout layout : {Layout::contiguous, Layout::inner_stride, Layout::permuted}) {
    const LayerMemory<float> memory(config(), 1, layout);
    const auto whole = memory.layer();
    const auto x = tokens(9);
    TestTensor<float> expected(x.shape());
    whole.forward(x.view(), expected.view(), causal());
    for (const auto& split : kSplits) {
      Sum sum(x.shape());
      for (const Heads& heads : split) {
        const auto part = whole.heads(heads.first, heads.count);
        EXPECT_EQ(part.config().num_heads, heads.count * kGroup);
        EXPECT_EQ(part.config().num_kv_heads, heads.count);
        EXPECT_EQ(part.output_weights().bias == nullptr, heads.first > 0);
        part.forward(x.view(), sum.part.view(), causal());
        sum.add();
      }
      expect_sum(sum.total, expected);
    }
  }
}

// The part against plain double loops, not against the layer: its own heads, its own columns.
TEST(LayerHeads, APartIsTheFormulaOfItsHeads) {
  const LayerMemory<float> memory(config());
  const auto part = memory.layer().heads(1, 2);
  const auto x = tokens(7);
  TestTensor<float> out(x.shape());
  part.forward(x.view(), out.view());
  const auto project = [&](const TestTensor<float>& weight, const TestTensor<float>& bias, Index b,
                           Index i, Index row) {
    double sum = static_cast<double>(bias(0, 0, 0, row));
    for (Index d = 0; d < kModel; ++d) {
      sum += static_cast<double>(x(b, 0, i, d)) * static_cast<double>(weight(0, 0, row, d));
    }
    return sum;
  };
  TestTensor<double> expected(x.shape());
  expected.fill([](Index, Index, Index, Index) { return 0; });
  for_each_index(Shape4{2, 4, 7, kValueDim}, [&](Index b, Index part_head, Index i, Index d) {
    const Index h = 2 + part_head, shared = h / kGroup;
    double denominator = 0, head = 0;
    for (Index j = 0; j < 7; ++j) {
      double score = 0;
      for (Index e = 0; e < kHeadDim; ++e) {
        score += project(memory.query, memory.query_bias, b, i, h * kHeadDim + e) *
                 project(memory.key, memory.key_bias, b, j, shared * kHeadDim + e);
      }
      const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
      denominator += weight;
      head += weight * project(memory.value, memory.value_bias, b, j, shared * kValueDim + d);
    }
    for (Index o = 0; o < kModel; ++o) {
      expected(b, 0, i, o) +=
          head / denominator * static_cast<double>(memory.output(0, 0, o, h * kValueDim + d));
    }
  });
  const long double bar = 200 * epsilon<float>() * (1 + largest_magnitude(expected.view()));
  EXPECT_LE(largest_difference(out.view(), expected.view()), bar);
}

TEST(LayerHeads, StepWithCachesOfTheirOwn) {
  const LayerMemory<float> memory(config());
  const RotaryEmbedding rotary(kHeadDim, RotaryPairing::half_split, 100);
  const std::vector<float> gamma = {1, 2, 1, 0.5f, 1, 3};
  auto whole = memory.layer();
  whole.set_head_transform({RmsNormWeights<float>{gamma}, RmsNormWeights<float>{gamma}, &rotary});
  const auto x = tokens(12);
  TestTensor<float> expected(x.shape());
  KeyValueCache<float> cache(2, kKvHeads, 16, kHeadDim, kValueDim);
  const auto step = [&](const GroupedQueryAttention<float>& layer, KeyValueCache<float>& kept,
                        TestTensor<float>& out) {
    for (Index i = 0; i < 12; i += i == 0 ? 9 : 1) {
      const Index count = i == 0 ? 9 : 1;
      layer.step(x.view().slice_length(i, count), kept, out.view().slice_length(i, count),
                 causal());
    }
  };
  step(whole, cache, expected);
  for (const auto& split : kSplits) {
    Sum sum(x.shape());
    for (const Heads& heads : split) {
      KeyValueCache<float> of_part(2, heads.count, 16, kHeadDim, kValueDim);
      step(whole.heads(heads.first, heads.count), of_part, sum.part);
      sum.add();
      // Keys are turned, of magnitude 3 sqrt(6) at most after the norm; 24 terms each.
      EXPECT_LE(
          largest_difference(of_part.keys(), cache.keys().slice_heads(heads.first, heads.count)),
          200 * epsilon<float>() * 8);
    }
    expect_sum(sum.total, expected);
  }
}

// Slopes and sinks of the part's query heads, taken from those of the model.
TEST(LayerHeads, TakeTheirPartOfSlopesAndSinks) {
  const LayerMemory<float> memory(config());
  const auto whole = memory.layer();
  const auto x = tokens(9);
  const std::vector<double> slopes = alibi_slopes(kHeads);
  const std::vector<double> sinks = {0, 1, -1, 2, 0.5, -2, 1.5, 0.25};
  TestTensor<float> expected(x.shape());
  AttentionOptions options;
  options.sinks = sinks;
  whole.forward(x.view(), expected.view(), causal() & alibi(slopes), options);
  for (const auto& split : kSplits) {
    Sum sum(x.shape());
    for (const Heads& heads : split) {
      const Index first = heads.first * kGroup, count = heads.count * kGroup;
      options.sinks = Span<const double>(sinks.data() + first, count);
      whole.heads(heads.first, heads.count)
          .forward(x.view(), sum.part.view(),
                   causal() & alibi(Span<const double>(slopes.data() + first, count)), options);
      sum.add();
    }
    expect_sum(sum.total, expected);
  }
}

TEST(LayerHeads, OfHeadsOfTheirOwnAndOfOneHead) {
  const MultiHeadAttention<float> layer(kModel, 4, 7);
  const auto x = tokens(9);
  TestTensor<float> expected(x.shape());
  layer.forward(x.view(), expected.view());
  Sum sum(x.shape());
  for (Index h = 0; h < 4; ++h) {
    layer.heads(h, 1).forward(x.view(), sum.part.view());
    sum.add();
  }
  expect_sum(sum.total, expected);
  // A part of a part.
  TestTensor<float> one(x.shape()), same(x.shape());
  layer.heads(1, 3).heads(1, 1).forward(x.view(), one.view());
  layer.heads(2, 1).forward(x.view(), same.view());
  EXPECT_TRUE(same_bits(one.view(), same.view()));
}

TEST(LayerHeads, ViewWeightsAndKeepThemAlive) {
  std::optional<GroupedQueryAttention<float>> whole(GroupedQueryAttention<float>(config(), 7));
  const auto x = tokens(9);
  TestTensor<float> expected(x.shape()), out(x.shape());
  whole->heads(2, 2).forward(x.view(), expected.view());
  const float* const key = whole->key_weights().weight.data();
  allocations().reset();
  const auto part = whole->heads(2, 2);
  EXPECT_EQ(allocations().count.load(), 0u);
  EXPECT_EQ(part.key_weights().weight.data(), key + 2 * kHeadDim * kModel);
  EXPECT_EQ(part.key_weights().bias.data(), whole->key_weights().bias.data() + 2 * kHeadDim);
  whole.reset();
  part.forward(x.view(), out.view());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

TEST(LayerHeads, ThatAreNotThereAreRefused) {
  const GroupedQueryAttention<float> layer(config(), 7);
  constexpr Index kMost = (std::numeric_limits<Index>::max)();
  for (const Heads& heads : {Heads{-1, 1}, {0, 0}, {0, 5}, {4, 1}, {kMost, 2}, {1, kMost}}) {
    const std::string first = std::to_string(heads.first);
    EXPECT_EQ(
        message_of<ShapeError>([&] { layer.heads(heads.first, heads.count); }),
        "GroupedQueryAttention::heads: there must be at least 1 of the 4 key and value heads, "
        "got [" +
            first + ", " + first + " + " + std::to_string(heads.count) + ")");
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// AttentionBlock: its formula, its two dropouts, its two modes.
#include "attn/layers/attention_block.hpp"
#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "support/allocations.hpp"
#include "support/element_types.hpp"
#include "support/layers.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::BookAnswers;
using test::BookLayer;
using test::config_of;
using test::Formula;
using test::KeepStage;
using test::LayerMemory;
using test::LayerTensors;
using test::message_of;
using test::RoundStage;
using test::same_bits;
using test::TestTensor;

template <class T>
class BlockOf : public ::testing::Test {};
TYPED_TEST_SUITE(BlockOf, test::ElementTypes, test::TypeNames);

/// gamma and beta of a block.
template <class T>
struct NormMemory {
  std::vector<T> gamma, beta;

  explicit NormMemory(Index dim) {
    for (Index d = 0; d < dim; ++d) {
      const auto at = static_cast<std::uint64_t>(d);
      gamma.push_back(test::to<T>(1 + 0.5 * test::uniform(101, at)));
      beta.push_back(test::to<T>(test::uniform(102, at)));
    }
  }
  LayerNormWeights<T> weights() const { return {gamma.data(), beta.data()}; }
};

/// The block by the book in S, each stage's result through `Stage`. `dropout`: both of them.
template <class S, class Stage, class T>
BookLayer<S, Stage> book_block(const AttentionBlock<T>& block, const LayerTensors<T>& in,
                               const Dropout& dropout) {
  AttentionOptions options;
  options.dropout = dropout;
  BookLayer<S, Stage> book(block.attention(), in, Formula{}, options);
  if (dropout.probability > 0) {
    const std::uint64_t threshold = dropout_threshold(dropout.probability);
    test::for_each_index(book.heads.shape(), [&](Index b, Index h, Index i, Index d) {
      const RandomPlane plane(RandomPlane::Stream::block_features, dropout.seed, dropout.offset, b,
                              0);
      S& value = book.heads(b, h, i, d);
      value = plane.bits(i, d) < threshold
                  ? S(0)
                  : Stage()(value / static_cast<S>(1 - dropout.probability));
    });
  }
  book.out = book.project(book.heads.view(), block.attention().output_weights());
  const Index dim = book.out.shape().dim;
  test::for_each_index(in.query.shape(), [&](Index b, Index h, Index i, Index d) {
    S& value = book.out(b, h, i, d);
    value = Stage()(value + static_cast<S>(test::widen(in.query(b, h, i, d))));
    if (d + 1 < dim) return;  // the row is complete
    S mean = 0, variance = 0;
    for (Index e = 0; e < dim; ++e) mean += book.out(b, h, i, e) / static_cast<S>(dim);
    for (Index e = 0; e < dim; ++e) {
      const S difference = book.out(b, h, i, e) - mean;
      variance += difference * difference / static_cast<S>(dim);
    }
    for (Index e = 0; e < dim; ++e) {
      S& x = book.out(b, h, i, e);
      const LayerNormWeights<T>& norm = block.norm();
      x = (x - mean) / std::sqrt(variance + static_cast<S>(norm.epsilon));
      if (norm.gamma != nullptr) x *= static_cast<S>(test::widen(norm.gamma[e]));
      if (norm.beta != nullptr) x += static_cast<S>(test::widen(norm.beta[e]));
      x = Stage()(x);
    }
  });
  return book;
}

template <class T>
TestTensor<T> forward(const AttentionBlock<T>& block, const LayerTensors<T>& in,
                      const AttentionOptions& options = {},
                      BlockMode mode = BlockMode::evaluation) {
  TestTensor<T> out(in.query.shape());
  block.forward(in.query.view(), in.key.view(), in.value.view(), out.view(), no_mask(), options, {},
                mode);
  return out;
}

template <class T>
void check(const AttentionBlock<T>& block, const LayerTensors<T>& in, const Dropout& dropout,
           BlockMode mode) {
  using A = AccumulationType<T>;
  using Wide = typename BookAnswers<T>::Wide;
  Dropout applied = dropout;
  applied.probability = mode == BlockMode::training ? block.dropout() : 0;
  const auto exact = book_block<Wide, KeepStage>(block, in, applied);
  const auto plain = book_block<A, RoundStage<T>>(block, in, applied);
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    options.dropout = dropout;
    BookAnswers<T>::hold("out", forward(block, in, options, mode), exact.out, plain.out);
  }
}

TYPED_TEST(BlockOf, FormulaInBothModes) {
  for (const Index kv_heads : {1, 2, 4}) {
    AttentionConfig config = config_of(12, 4, kv_heads);
    config.value_dim = 5;
    const LayerMemory<TypeParam> memory(config, 31);
    const NormMemory<TypeParam> norm(12);
    const AttentionBlock<TypeParam> block(memory.layer(), 0.3, norm.weights());
    for (const Index queries : {1, 5, 20}) {
      const LayerTensors<TypeParam> in(memory.config, 2, queries, 23);
      check(block, in, Dropout{0, 7, 8}, BlockMode::evaluation);
      check(block, in, Dropout{0, 7, 8}, BlockMode::training);
    }
  }
}

TYPED_TEST(BlockOf, WithoutGammaAndBeta) {
  const AttentionBlock<TypeParam> block(config_of(12, 4), 32);
  EXPECT_EQ(block.dropout(), 0.1);
  check(block, LayerTensors<TypeParam>(block.attention().config(), 2, 5, 7), Dropout{},
        BlockMode::evaluation);
}

// Evaluation is the block without dropout, bit for bit, whatever the seed; and it is the default.
TYPED_TEST(BlockOf, EvaluationDropsNothing) {
  const LayerMemory<TypeParam> memory(config_of(12, 4, 2), 33);
  const AttentionBlock<TypeParam> block(memory.layer(), 0.9), none(memory.layer(), 0);
  const LayerTensors<TypeParam> in(memory.config, 2, 20, 20);
  AttentionOptions seeded;
  seeded.dropout.seed = 5;
  const TestTensor<TypeParam> expected = forward(none, in);
  EXPECT_TRUE(same_bits(forward(block, in, seeded).view(), expected.view()));
  EXPECT_TRUE(same_bits(forward(none, in, seeded, BlockMode::training).view(), expected.view()));
  TestTensor<TypeParam> by_default(in.query.shape());
  block.forward(in.query.view(), in.key.view(), in.value.view(), by_default.view());
  EXPECT_TRUE(same_bits(by_default.view(), expected.view()));
}

TEST(Block, SelfAttentionAndExtraOutputs) {
  const LayerMemory<float> memory(config_of(12, 4), 34);
  const AttentionBlock<float> block(memory.layer(), 0.5);
  LayerTensors<float> in(memory.config, 2, 20, 20);
  in.key.fill([&](Index b, Index h, Index i, Index d) { return in.query(b, h, i, d); });
  in.value.fill([&](Index b, Index h, Index i, Index d) { return in.query(b, h, i, d); });
  TestTensor<float> self(in.query.shape()), weights({2, 4, 20, 20});
  block.forward(in.query.view(), self.view(), no_mask(), {}, {weights.view(), {}},
                BlockMode::training);
  EXPECT_TRUE(same_bits(self.view(), forward(block, in, {}, BlockMode::training).view()));
  // The weights are those that were multiplied with the values: some are dropped.
  int dropped = 0;
  test::for_each_index(weights.shape(), [&](Index b, Index h, Index i, Index j) {
    dropped += weights(b, h, i, j) == 0 ? 1 : 0;
  });
  // 3200 weights at p = 0.5: a deviation of 28.3.
  EXPECT_NEAR(dropped, 1600, 5 * 28.3);
}

// Another offset or seed drops others; the same drops the same, on any number of threads.
TEST(Block, DropoutFollowsFromSeedAndOffset) {
  const LayerMemory<float> memory(config_of(12, 4), 35);
  const AttentionBlock<float> block(memory.layer(), 0.5);
  const LayerTensors<float> in(memory.config, 2, 20, 20);
  const auto with = [&](std::uint64_t seed, std::uint64_t offset, Executor* executor = nullptr) {
    AttentionOptions options;
    options.dropout = {0, seed, offset};
    options.executor = executor;
    return forward(block, in, options, BlockMode::training);
  };
  const TestTensor<float> expected = with(1, 2);
  EXPECT_TRUE(same_bits(with(1, 2).view(), expected.view()));
  EXPECT_FALSE(same_bits(with(1, 3).view(), expected.view()));
  EXPECT_FALSE(same_bits(with(2, 2).view(), expected.view()));
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(same_bits(with(1, 2, &pool).view(), expected.view())) << threads;
  }
}

// p = 1 drops every feature: the bias of the output projection, the residual and the norm are left.
TEST(Block, DropsAllFeatures) {
  const LayerMemory<float> memory(config_of(12, 4), 36);
  const AttentionBlock<float> block(memory.layer(), 1);
  const LayerTensors<float> in(memory.config, 2, 20, 20);
  TestTensor<float> expected(in.query.shape());
  expected.fill([&](Index b, Index h, Index i, Index d) {
    return in.query(b, h, i, d) + memory.output_bias(0, 0, 0, d);
  });
  layer_norm(expected.view(), LayerNormWeights<float>{}, expected.view());
  EXPECT_TRUE(same_bits(forward(block, in, {}, BlockMode::training).view(), expected.view()));
}

TEST(Block, NeedsNoMoreMemoryThanItsLayer) {
  const AttentionBlock<float> block(config_of(32, 4), 37, 0.2);
  const LayerTensors<float> in(block.attention().config(), 2, 40, 40);
  TestTensor<float> out(in.query.shape());
  const std::size_t bytes = block.attention().workspace_bytes(in.query.view());
  std::vector<char> workspace(bytes);
  AttentionOptions options;
  options.workspace = {workspace.data(), bytes};
  test::allocations().reset();
  block.forward(in.query.view(), out.view(), no_mask(), options, {}, BlockMode::training);
  EXPECT_EQ(test::allocations().count, 0u);
}

TEST(BlockErrors, OfSettings) {
  const auto layer = LayerMemory<float>(config_of(4, 2)).layer();
  const std::pair<double, std::string> wrong[] = {{-0.1, "-0.1"}, {1.5, "1.5"}};
  for (const auto& [p, text] : wrong) {
    EXPECT_EQ(message_of<OptionError>([&, p = p] { AttentionBlock<float>(layer, p); }),
              "AttentionBlock: dropout must lie within 0 and 1, got " + text);
  }
  LayerNormWeights<float> norm;
  norm.epsilon = -1;
  EXPECT_EQ(message_of<OptionError>([&] { AttentionBlock<float>(layer, 0.1, norm); }),
            "AttentionBlock: epsilon must be finite and 0 or more, got -1");
  EXPECT_EQ(message_of<OptionError>([&] { AttentionBlock<float>(config_of(10, 3), 1); }),
            "GroupedQueryAttention: model_dim must be divisible by num_heads, or head_dim given; "
            "got model_dim 10, num_heads 3");
}

TEST(BlockErrors, OfCalls) {
  const LayerMemory<float> memory(config_of(4, 2));
  NormMemory<float> norm(4);
  const AttentionBlock<float> block(memory.layer(), 0.1, norm.weights());
  TestTensor<float> x({1, 1, 3, 4}), out({1, 1, 3, 4}), wrong({1, 1, 3, 5});
  x.fill_value(1);
  const std::string shapes = "; got x [1, 1, 3, 4], out [1, 1, 3, 4]";
  AttentionOptions options;
  options.dropout.probability = 0.5;
  for (const BlockMode mode : {BlockMode::evaluation, BlockMode::training}) {
    EXPECT_EQ(message_of<OptionError>(
                  [&] { block.forward(x.view(), out.view(), no_mask(), options, {}, mode); }),
              "AttentionBlock::forward: options.dropout.probability must be 0: the block has a "
              "dropout of its own, which BlockMode::training turns on; got 0.5" +
                  shapes);
  }
  EXPECT_EQ(message_of<ShapeError>([&] { block.forward(x.view(), wrong.view()); }),
            "AttentionBlock::forward: out must be [batch of query, 1, length of query, model_dim]; "
            "got x [1, 1, 3, 4], out [1, 1, 3, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              block.forward(x.view(), Tensor4<float>(norm.gamma.data() - 11, {1, 1, 3, 4}));
            }),
            "AttentionBlock::forward: out overlaps gamma of the block in memory" + shapes);
  char little[8];
  options = AttentionOptions();
  options.workspace = {little, sizeof little};
  EXPECT_EQ(
      message_of<OptionError>([&] { block.forward(x.view(), out.view(), no_mask(), options); }),
      "AttentionBlock::forward: options.workspace is too small: "
      "attention().workspace_bytes asks for " +
          std::to_string(block.attention().workspace_bytes(x.view())) + " bytes, got 8" + shapes);
  EXPECT_TRUE(out.is_untouched());
  EXPECT_TRUE(wrong.is_untouched());
}

}  // namespace
}  // namespace attn

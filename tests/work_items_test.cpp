#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attn/attention.hpp"
#include "attn/executor.hpp"
#include "attn/mask.hpp"
#include "attn/thread_pool.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::Inputs;
using test::Sizes;
using test::TestTensor;

/// Would run more tasks at a time than any call here has, and remembers how many it was given.
class CountingExecutor final : public Executor {
 public:
  int concurrency() const override { return 1000; }
  void parallel_for(Index count, void (*task)(void*, Index), void* context) override {
    most_ = (std::max)(most_, count);
    for (Index i = 0; i < count; ++i) task(context, i);
  }
  Index most() const { return most_; }

 private:
  Index most_ = 1;
};

struct Shape {
  Index query_heads, queries, keys, key_dim, value_dim;
};

/// The work items of a call on one K/V head.
Index items_of(const Shape& shape) {
  float zero = 0;
  const Stride4 broadcast{0, 0, 0, 0};
  const Tensor4<const float> q(&zero, {1, shape.query_heads, shape.queries, shape.key_dim},
                               broadcast);
  const Tensor4<const float> k(&zero, {1, 1, shape.keys, shape.key_dim}, broadcast);
  const Tensor4<const float> v(&zero, {1, 1, shape.keys, shape.value_dim}, broadcast);
  TestTensor<float> out({1, shape.query_heads, shape.queries, shape.value_dim});
  CountingExecutor executor;
  AttentionOptions options;
  options.executor = &executor;
  scaled_dot_product_attention(q, k, v, out.view(), no_mask(), options);
  return executor.most();
}

// One sequence with one K/V head keeps the threads of a machine busy.
TEST(WorkItems, OfOneHeadAreEnoughForManyThreads) {
  EXPECT_GE(items_of({71, 1, 32768, 64, 64}), 8);
  EXPECT_GE(items_of({64, 1, 32768, 64, 64}), 16);
  EXPECT_GE(items_of({1, 65, 16384, 64, 64}), 4);
  EXPECT_GE(items_of({1, 128, 16384, 64, 64}), 4);
  EXPECT_GE(items_of({32, 1, 4096, 128, 128}), 4);
  EXPECT_GE(items_of({32, 1, 2048, 128, 128}), 2);
  EXPECT_GE(items_of({128, 1, 8192, 576, 512}), 6);  // latent attention
}

// Too little work for a second item: to merge would cost more than it gives.
TEST(WorkItems, AreNotTooSmall) {
  EXPECT_EQ(items_of({1, 1, 4096, 128, 128}), 1);
  EXPECT_EQ(items_of({4, 1, 4096, 128, 128}), 1);
  EXPECT_EQ(items_of({64, 1, 1024, 64, 64}), 1);
  EXPECT_EQ(items_of({128, 1, 2048, 64, 64}), 1);
}

class Splits : public ::testing::TestWithParam<Sizes> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Splits,
                         ::testing::Values(Sizes{2, 71, 1, 1, 1, 4200, 24, 20},
                                           Sizes{2, 4, 1, 1, 13, 2300, 64, 90},
                                           Sizes{2, 1, 1, 1, 128, 4500, 16, 8},
                                           Sizes{2, 4, 2, 1, 90, 4200, 8, 5},
                                           Sizes{2, 20, 1, 1, 1, 2500, 200, 272}));

// Outputs, weights and log-sum-exp of merged splits are right.
TEST_P(Splits, MergeToTheRightAnswer) {
  const Sizes& s = GetParam();
  const std::vector<double> sinks(static_cast<std::size_t>(s.query_heads), 0.5);
  AttentionOptions options;
  options.sinks = sinks;
  CountingExecutor executor;
  options.executor = &executor;
  const Index keys = s.key_length - 3;
  test::expect_attention<float>(
      Inputs<float>(s, 7), causal_from(keys - s.query_length) & key_lengths(keys),
      test::keeps([&](Index, Index, Index i, Index j) { return j <= i + keys - s.query_length; }),
      options);
  EXPECT_GT(executor.most(), s.batch * s.key_heads);
}

// Threads and the other sequences of a batch change no bit.
TEST_P(Splits, DoNotDependOnThreadsOrOtherSequences) {
  const Sizes& s = GetParam();
  const Inputs<float> in(s, 8);
  const auto both = test::run(in, causal_bottom_right());
  ThreadPool pool(3);
  AttentionOptions options;
  options.executor = &pool;
  test::expect_same(both, test::run(in, causal_bottom_right(), options), "three threads");
  TestTensor<float> second({1, s.query_heads, s.query_length, s.value_dim});
  scaled_dot_product_attention(in.q.view().slice_batch(1, 1), in.k.view().slice_batch(1, 1),
                               in.v.view().slice_batch(1, 1), second.view(), causal_bottom_right(),
                               options);
  EXPECT_TRUE(test::same_bits(second.view(), both.out.view().slice_batch(1, 1)));
}

}  // namespace
}  // namespace attn

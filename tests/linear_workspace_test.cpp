// linear in memory of the caller's, and options structs that serve all functions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/layers/layer_norm.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/options.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

template <class X, class W>
struct Inputs {
  TestTensor<X> x;
  TestTensor<W> weight;
  std::vector<W> bias;

  Inputs(Index batch, Index length, Index in, Index out)
      : x({batch, 1, length, in}), weight({1, 1, out, in}), bias(static_cast<std::size_t>(out)) {
    x.fill_uniform(1);
    weight.fill_uniform(2);
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = to<W>(uniform(3, i));
  }
  LinearWeights<W> weights() const { return {weight.view(), bias}; }
};

/// A workspace of the size that is asked for gives the bits of the call without one, and no
/// allocation, whatever the type of out.
template <class X, class W, class Y>
void expect_works_in_a_workspace(Index length, Index in, Index out, Executor* executor = nullptr) {
  const Inputs<X, W> inputs(2, length, in, out);
  TestTensor<Y> y({2, 1, length, out}), expected({2, 1, length, out});
  LinearOptions options;
  options.executor = executor;
  linear(inputs.x.view(), inputs.weights(), expected.view(), options);
  std::vector<char> memory(linear_workspace_bytes(inputs.x.view(), inputs.weights(), options));
  options.workspace = {memory.data(), memory.size()};
  allocations().reset();
  linear(inputs.x.view(), inputs.weights(), y.view(), options);
  EXPECT_EQ(allocations().count, 0u);
  EXPECT_TRUE(same_bits(y.view(), expected.view()));
}

TEST(LinearWorkspace, IsEnoughAndSavesTheAllocation) {
  for (const Index length : {1, 15, 16, 200}) {
    for (const Index in : {3, 700}) {
      expect_works_in_a_workspace<float, float, float>(length, in, 300);
      expect_works_in_a_workspace<float, Eigen::half, double>(length, in, 300);
      expect_works_in_a_workspace<Eigen::bfloat16, float, Eigen::half>(length, in, 30);
      expect_works_in_a_workspace<double, float, float>(length, in, 30);
    }
  }
}

TEST(LinearWorkspace, IsEnoughForManyThreads) {
  ThreadPool pool(3);
  expect_works_in_a_workspace<float, float, float>(200, 70, 300, &pool);
  expect_works_in_a_workspace<float, Eigen::half, float>(3, 70, 3000, &pool);
}

TEST(LinearWorkspace, OfNoWorkIsEmpty) {
  const Inputs<float, float> none(2, 0, 3, 5);
  EXPECT_EQ(linear_workspace_bytes(none.x.view(), none.weights()), 0u);
}

TEST(LinearWorkspace, IsCheckedBeforeAnythingIsWritten) {
  const Inputs<float, float> inputs(1, 20, 30, 40);
  TestTensor<float> y({1, 1, 20, 40});
  LinearOptions options;
  const std::size_t bytes = linear_workspace_bytes(inputs.x.view(), inputs.weights());
  std::vector<char> memory(bytes);
  const auto message = [&](void* data, std::size_t size) {
    options.workspace = {data, size};
    return message_of<OptionError>(
        [&] { linear(inputs.x.view(), inputs.weights(), y.view(), options); });
  };
  EXPECT_EQ(message(memory.data(), 100).substr(0, 71),
            "linear: options.workspace is too small: linear_workspace_bytes asks for");
  EXPECT_EQ(message(nullptr, 7).substr(0, 65),
            "linear: options.workspace is null, but says that it holds 7 bytes");
  EXPECT_TRUE(y.is_untouched());

  TestTensor<float> wide({1, 1, 20, 31});
  EXPECT_EQ(message_of<ShapeError>([&] { linear_workspace_bytes(wide.view(), inputs.weights()); }),
            "linear_workspace_bytes: weight must be [1, 1, out, dim of x]; got x [1, 1, 20, 31], "
            "weight [1, 1, 40, 30], bias [1, 1, 1, 40]");
}

/// Counts the loops that it is given.
class CountingExecutor : public Executor {
 public:
  int concurrency() const override { return 2; }
  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    for (Index i = 0; i < count; ++i) task(context, i);
    ++loops;
  }
  int loops = 0;
};

TEST(Options, OfOneCallServeOthers) {
  CountingExecutor executor;
  AttentionOptions attention_options;
  LinearOptions linear_options;
  attention_options.executor = linear_options.executor = &executor;
  const RotaryEmbedding rotary(32, RotaryPairing::interleaved);
  TestTensor<float> x({2, 1, 1000, 32}), y({2, 1, 1000, 32});
  x.fill_uniform(1);
  const auto expect_loops = [&](int loops, const auto&... options) {
    executor.loops = 0;
    layer_norm(x.view(), LayerNormWeights<float>{}, y.view(), options...);
    rms_norm(x.view(), RmsNormWeights<float>{}, y.view(), options...);
    rotary.apply(y.view(), 0, options...);
    TestTensor<std::int32_t> positions({1, 1, 1000, 1});
    positions.fill([](Index, Index, Index i, Index) { return i; });
    rotary.apply(y.view(), positions.view(), options...);
    EXPECT_EQ(executor.loops, loops);
  };
  expect_loops(4, attention_options);
  expect_loops(4, linear_options);
  expect_loops(4, ExecutorOptions(&executor));
  expect_loops(4, &executor);
  expect_loops(0, AttentionOptions());
  expect_loops(0, nullptr);
  expect_loops(0);
  executor.loops = 0;
  layer_norm(x.view(), LayerNormWeights<float>{}, y.view(), {&executor});
  layer_norm(x.view(), LayerNormWeights<float>{}, y.view(), {});
  EXPECT_EQ(executor.loops, 1);
}

}  // namespace
}  // namespace test
}  // namespace attn

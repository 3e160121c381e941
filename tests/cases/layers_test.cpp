// Public bug reports: layers in evaluation, and one layer used by many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

AttentionConfig small_config() {
  AttentionConfig config;
  config.model_dim = 12;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  return config;
}

TestTensor<float> tokens(Index batch, Index length, std::uint64_t seed) {
  TestTensor<float> x({batch, 1, length, 12});
  x.fill_uniform(seed);
  return x;
}

// pytorch/pytorch#124464: a module drops in evaluation too.
TEST(Layers, D37BlockDropsInTrainingOnly) {
  const AttentionBlock<float> dropping(small_config(), 7, 0.5), plain(small_config(), 7, 0.0);
  const TestTensor<float> x = tokens(2, 5, 1);
  const auto outputs = [&](const AttentionBlock<float>& block, BlockMode mode) {
    TestTensor<float> out(x.shape());
    block.forward(x.view(), out.view(), AnyMask(), {}, {}, mode);
    return out;
  };
  const TestTensor<float> expected = outputs(plain, BlockMode::evaluation);
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(same_bits(outputs(dropping, BlockMode::evaluation).view(), expected.view()));
  }
  EXPECT_TRUE(same_bits(outputs(plain, BlockMode::training).view(), expected.view()));
  EXPECT_FALSE(same_bits(outputs(dropping, BlockMode::training).view(), expected.view()));

  TestTensor<float> out(x.shape());
  dropping.forward(x.view(), out.view(), AnyMask());  // evaluation is the default
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

// EricLBuehler/mistral.rs#1669: concurrent requests meet in the state of one layer.
TEST(Layers, D68OneConstLayerServesManyThreads) {
  constexpr int kThreads = 8, kCalls = 200;
  const GroupedQueryAttention<float> layer(small_config(), 7);
  struct Request {
    TestTensor<float> x, expected;
    AnyMask mask;
  };
  std::vector<Request> requests;
  for (const Index length : {1, 4, 17, 40}) {
    for (const bool is_causal : {false, true}) {
      Request request{tokens(2, length, requests.size() + 1), TestTensor<float>({2, 1, length, 12}),
                      is_causal ? AnyMask(causal()) : AnyMask()};
      layer.forward(request.x.view(), request.expected.view(), request.mask);
      requests.push_back(std::move(request));
    }
  }
  ThreadPool pool(2);  // shared by half of the callers
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (std::size_t t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      AttentionOptions options;
      if (t % 2 == 0) options.executor = &pool;
      for (std::size_t call = 0; call < kCalls; ++call) {
        const Request& request = requests[(t + call) % requests.size()];
        TestTensor<float> out(request.x.shape());
        layer.forward(request.x.view(), out.view(), request.mask, options);
        if (!same_bits(out.view(), request.expected.view())) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

template <class Layer, class = void>
constexpr bool kForwardIsCallable = false;
template <class Layer>
constexpr bool kForwardIsCallable<
    Layer, std::void_t<decltype(std::declval<Layer>().forward(
               std::declval<Tensor4<const float>>(), std::declval<Tensor4<float>>()))>> = true;

// Dobiasd/frugally-deep#369: may one object be used by many threads? A const one may: that is what
// const promises here, and forward is const.
TEST(Layers, D69ForwardIsConst) {
  EXPECT_TRUE(kForwardIsCallable<const MultiHeadAttention<float>&>);
  EXPECT_TRUE(kForwardIsCallable<const GroupedQueryAttention<float>&>);
  EXPECT_TRUE(kForwardIsCallable<const MultiQueryAttention<float>&>);
  EXPECT_TRUE(kForwardIsCallable<const AttentionBlock<float>&>);
}

}  // namespace
}  // namespace test
}  // namespace attn

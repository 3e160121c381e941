// What the bits and the memory of the attention layers depend on.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "attn/layers/multi_head.hpp"
#include "attn/thread_pool.hpp"
#include "multi_head_test/layer_of.hpp"
#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::BookAnswers;
using test::distinct_config;
using test::expect_same;
using test::forward;
using test::LayerMemory;
using test::LayerTensors;
using test::Results;
using test::same_bits;
using test::TestTensor;

TYPED_TEST(LayerOf, BitsDoNotDependOnTheExecutorOrTheWorkspace) {
  const LayerMemory<TypeParam> memory(distinct_config(), 20);
  const auto layer = memory.layer();
  for (const Index queries : {3, 70}) {
    const LayerTensors<TypeParam> in(memory.config, 3, queries, 90);
    const Results<TypeParam> expected = forward(layer, in, causal_bottom_right());
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      AttentionOptions options;
      options.executor = &pool;
      expect_same(forward(layer, in, causal_bottom_right(), options), expected,
                  std::to_string(threads) + " threads");
      const std::size_t bytes = layer.workspace_bytes(in.query.view(), in.key.view(),
                                                      in.value.view(), no_mask(), options);
      for (const std::size_t shift : {0u, 1u, 63u}) {
        std::vector<char> workspace(bytes + shift + 64, static_cast<char>(0xFF));  // NaN
        options.workspace = {workspace.data() + shift, bytes};
        expect_same(forward(layer, in, causal_bottom_right(), options), expected, "workspace");
        for (std::size_t i = bytes + shift; i < workspace.size(); ++i) {
          ASSERT_EQ(workspace[i], static_cast<char>(0xFF)) << "written behind the workspace";
        }
      }
    }
  }
}

TYPED_TEST(LayerOf, BitsDoNotDependOnTheBatchOrTheExtraOutputs) {
  const LayerMemory<TypeParam> memory(distinct_config(), 21);
  const auto layer = memory.layer();
  for (const Index queries : {3, 40}) {
    const LayerTensors<TypeParam> in(memory.config, 3, queries, 50);
    const Results<TypeParam> all = forward(layer, in);
    for (Index b = 0; b < 3; ++b) {
      TestTensor<TypeParam> out({1, 1, queries, memory.config.model_dim});
      layer.forward(in.query.view().slice_batch(b, 1), in.key.view().slice_batch(b, 1),
                    in.value.view().slice_batch(b, 1), out.view());
      EXPECT_TRUE(same_bits(out.view(), all.out.view().slice_batch(b, 1)));
    }
  }
}

TEST(Layers, ServeManyThreadsAtOnce) {
  const MultiHeadAttention<float> layer(24, 4, 22);
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&layer, &wrong, t] {
      const LayerTensors<float> in(layer.config(), 1, 10 + t, 10 + 3 * t,
                                   static_cast<std::uint64_t>(60 + t));
      const Results<float> first = forward<float>(layer, in);
      for (int call = 0; call < 20; ++call) {
        const Results<float> again = forward<float>(layer, in);
        if (!same_bits(first.out.view(), again.out.view())) ++wrong[static_cast<std::size_t>(t)];
      }
      // Alone, the same: neighbours left no trace in the first call either.
      const BookAnswers<float> book(layer, in);
      book.hold("out", first.out, book.exact.out, book.plain.out);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int w : wrong) EXPECT_EQ(w, 0);
}

TEST(LayerMemoryUse, IsOneAllocationAndNoneWithAWorkspace) {
  const MultiHeadAttention<float> layer(32, 4, 23);
  for (const Index length : {1, 40}) {
    const LayerTensors<float> in(layer.config(), 2, length, length);
    TestTensor<float> out(in.query.shape());
    AttentionOptions options;
    const std::size_t bytes = layer.workspace_bytes(in.query.view(), causal(), options);
    std::vector<char> workspace(bytes);
    test::allocations().reset();
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(test::allocations().count, 1u);
    EXPECT_LE(test::allocations().bytes, bytes);
    test::allocations().reset();
    options.workspace = {workspace.data(), bytes};
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(test::allocations().count, 0u);
  }
}

// Lanes and padding that no token fills are computed with, but never from what happens to lie in
// the workspace: signalling NaNs there raise no exception. More inputs than one depth (512), fewer
// tokens than a tile.
TEST(LayerMemoryUse, IsNotReadBeforeItIsWritten) {
  const MultiHeadAttention<float> layer(600, 3, 24);
  for (const Index length : {1, 20}) {
    const LayerTensors<float> in(layer.config(), 1, length, length);
    TestTensor<float> out(in.query.shape());
    const std::size_t bytes = layer.workspace_bytes(in.query.view());
    std::vector<std::uint32_t> workspace(bytes / 4 + 1, 0x7FA00001u);
    AttentionOptions options;
    options.workspace = {workspace.data(), bytes};
    std::feclearexcept(FE_ALL_EXCEPT);
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO), 0) << length;
  }
}

}  // namespace
}  // namespace attn

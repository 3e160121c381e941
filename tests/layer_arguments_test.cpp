// What linear, norms and layers take: views, buffers and Eigen matrices, which are one sequence of
// tokens.
#include <gtest/gtest.h>
#include <Eigen/Core>

#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/attention_block.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Runs call(x, out) with tensors and with matrices of either storage order: the same bits.
template <class Call>
void expect_takes_matrices(Index length, Index in, Index out, const Call& call) {
  Tensor4Buffer<float> x({1, 1, length, in}), expected({1, 1, length, out});
  for (Index i = 0; i < length; ++i) {
    for (Index d = 0; d < in; ++d) {
      x(0, 0, i, d) = to<float>(uniform(1, static_cast<std::uint64_t>(i * in + d)));
    }
  }
  call(x, expected);
  const RowMajor rows = x.view().matrix(0, 0);
  const Eigen::MatrixXf columns = x.view().matrix(0, 0);
  RowMajor out_rows(length, out);
  Eigen::MatrixXf wide(length, out + 3);
  call(columns, out_rows);
  EXPECT_TRUE(same_bits(view(out_rows), expected.view()));
  call(rows, wide.middleCols(2, out));
  EXPECT_TRUE(same_bits(view(wide.middleCols(2, out)), expected.view()));
}

TEST(LayerArguments, MayBeMatrices) {
  const std::vector<float> weight(12, 0.5f);
  const LinearWeights<float> weights{Tensor4<const float>(weight.data(), {1, 1, 3, 4})};
  expect_takes_matrices(5, 4, 3, [&](const auto& x, auto&& out) {
    EXPECT_GT(linear_workspace_bytes(x, weights), 0u);
    linear(x, weights, out);
  });
  expect_takes_matrices(
      5, 4, 4, [&](const auto& x, auto&& out) { layer_norm(x, LayerNormWeights<float>{}, out); });
  expect_takes_matrices(
      5, 4, 4, [&](const auto& x, auto&& out) { rms_norm(x, RmsNormWeights<float>{}, out); });
  const RotaryEmbedding rotary(4, RotaryPairing::half_split);
  expect_takes_matrices(5, 4, 4, [&](const auto& x, auto&& out) {
    rms_norm(x, RmsNormWeights<float>{}, out);
    rotary.apply(out, 3);
  });
}

TEST(LayerArguments, OfPassesMayBeMatrices) {
  const MultiHeadAttention<float> layer(8, 2, 1);
  const AttentionBlock<float> block(layer);
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) {
    EXPECT_GT(layer.workspace_bytes(x, causal()), 0u);
    layer.forward(x, out, causal());
  });
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) { layer.forward(x, x, x, out); });
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) { block.forward(x, out); });
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) { block.forward(x, x, x, out); });
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) {
    KeyValueCache<float> cache(1, 2, 9, 4);
    EXPECT_GT(layer.step_workspace_bytes(x, cache, causal()), 0u);
    layer.step(x, cache, out, causal());
    EXPECT_EQ(cache.length(0), 5);
  });
  expect_takes_matrices(5, 8, 8, [&](const auto& x, auto&& out) {
    KeyValueCache<float> cache(1, 2, 9, 4);
    layer.append(x, x, cache);
    layer.attend(x, cache, out);
    EXPECT_EQ(cache.length(0), 5);
  });
}

TEST(LayerArguments, ExtraOutputsMayBeBraced) {
  const MultiHeadAttention<float> layer(8, 2, 1);
  const AttentionBlock<float> block(layer);
  Tensor4Buffer<float> x({1, 1, 5, 8}), out({1, 1, 5, 8}), weights({1, 2, 5, 5}), sum({1, 2, 5, 1});
  const auto expect_weights = [&](const auto& call) {
    weights(0, 1, 4, 4) = sum(0, 1, 4, 0) = -1;
    call();
    EXPECT_FLOAT_EQ(weights(0, 1, 4, 4), 0.2f);
    EXPECT_NE(sum(0, 1, 4, 0), -1);
  };
  expect_weights([&] { layer.forward(x, out, no_mask(), {}, {weights.view(), sum.view()}); });
  expect_weights([&] { layer.forward(x, x, x, out, no_mask(), {}, {weights.view(), sum.view()}); });
  expect_weights([&] { block.forward(x, out, no_mask(), {}, {weights.view(), sum.view()}); });
}

}  // namespace
}  // namespace test
}  // namespace attn

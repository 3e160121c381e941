// Public bug reports: which key and value head a query head reads.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// onnx/onnx#7274: key heads are tiled (0 1 0 1) instead of repeated (0 0 1 1).
TEST(Heads, D35NeighboursShareTheirKeyHead) {
  for (const Index group : {1, 2, 3, 8}) {
    for (const Index kv_heads : {1, 2, 4}) {
      for (const Index queries : {1, 5}) {
        const Index heads = group * kv_heads;
        TestTensor<float> q({1, heads, queries, 1}), k({1, kv_heads, 1, 1}), v({1, kv_heads, 1, 1});
        q.fill_uniform(1);
        k.fill_uniform(2);
        v.fill([](Index, Index h, Index, Index) { return static_cast<float>(h); });
        const auto result = scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask());
        for_each_index(result.output.shape(), [&](Index b, Index h, Index i, Index d) {
          EXPECT_EQ(result.output(b, h, i, d), static_cast<float>(h / group));
        });
      }
    }
  }
}

// The value head count may differ from the key head count: each maps on its own.
TEST(Heads, D35KeyAndValueHeadsMapOnTheirOwn) {
  // Key head 0 prefers key 0, key head 1 prefers key 1, overwhelmingly.
  TestTensor<float> q({1, 4, 1, 1}), k({1, 2, 2, 1}), v({1, 1, 2, 1});
  q.fill_value(100);
  k.fill([](Index, Index h, Index j, Index) { return h == j ? 1.0f : -1.0f; });
  v.fill([](Index, Index, Index j, Index) { return static_cast<float>(j + 1); });
  const auto result = scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask());
  const float expected[] = {1, 1, 2, 2};
  for (Index h = 0; h < 4; ++h) EXPECT_EQ(result.output(0, h, 0, 0), expected[h]);
}

// OpenNMT/CTranslate2#1496: ALiBi is shaped for the key heads, of which there is one.
TEST(Heads, D36SlopesBelongToQueryHeads) {
  const std::vector<double> slopes = {0.5, 0.25, 0.125, 0.0625};
  const MeanProbe<> probe(
      1, 4, [](Index j) { return static_cast<double>(j); }, 4, 1);
  const std::vector<double> rows = probe.outputs(alibi(slopes));
  for (std::size_t h = 0; h < 4; ++h) {
    double sum = 0, denominator = 0;
    for (int j = 0; j < 4; ++j) {
      const double weight = std::exp(-slopes[h] * (3 - j));
      sum += weight * j;
      denominator += weight;
    }
    // Scores are exact; the values are at most 3.
    EXPECT_NEAR(rows[h], sum / denominator, 3 * mean_tolerance<float>()) << "head " << h;
  }
  EXPECT_NEAR(rows[0], 2.08457649, 3 * mean_tolerance<float>());
}

}  // namespace
}  // namespace test
}  // namespace attn

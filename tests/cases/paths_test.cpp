// Public bug reports: options that send a call another way, where it forgets something.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// keras-team/keras#23038: the causal mask is dropped where dropout, weights or another shape switch
// the fused path off.
TEST(Paths, D66CausalOnEveryPath) {
  const std::vector<double> rows = {1, 1.5, 7.0 / 3, 3.75, 6.2, 10.5};
  TestTensor<bool> all({1, 1, 6, 6});
  all.fill_value(true);
  const double no_sink = -infinity<double>();
  for (const Index heads : {1, 4}) {
    for (const Index kv_heads : {Index{1}, heads}) {
      const MeanProbe<> probe = bits_probe(6, 6, heads, kv_heads);
      std::vector<double> expected;
      for (Index h = 0; h < heads; ++h) expected.insert(expected.end(), rows.begin(), rows.end());
      const std::vector<double> sinks(static_cast<std::size_t>(heads), no_sink);
      for (const Want want : {Want::output, Want::weights, Want::log_sum_exp}) {
        for (const bool has_options : {false, true}) {
          AttentionOptions options;
          if (has_options) {
            options.dropout = {0, 5, 6};
            options.sinks = sinks;
          }
          expect_means(probe.outputs(causal(), options, want), expected);
          expect_means(probe.outputs(causal() & keep_where(all.view()), options, want), expected);
        }
      }
    }
  }
}

TEST(Paths, D66CausalUnderDropout) {
  // 1 - p = 1/2 is exact: every output is twice a sum over some of the keys that are seen.
  const MeanProbe<> probe = bits_probe(6, 6);
  AttentionOptions options;
  options.dropout = {0.5, 5, 6};
  const auto result = scaled_dot_product_attention(probe.q.view(), probe.k.view(), probe.v.view(),
                                                   AnyMask(causal()), options, Want::weights);
  int kept = 0;
  for_each_index({1, 1, 6, 6}, [&](Index b, Index h, Index i, Index j) {
    const double weight = static_cast<double>(result.weights(b, h, i, j));
    if (weight == 0) return;
    ++kept;
    EXPECT_LE(j, i);
    EXPECT_NEAR(weight, 2.0 / static_cast<double>(i + 1), 2 * mean_tolerance<float>());
  });
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 21);  // of 21 that are seen
}

// pytorch/pytorch#97111: where the same keys are padding in every batch, the output has fewer rows.
TEST(Paths, D67PaddingOfKeysLeavesTheQueries) {
  TestTensor<float> q({6, 1, 20, 4}), k({6, 1, 20, 4}), v({6, 1, 20, 4});
  q.fill_uniform(1);
  k.fill_uniform(2);
  v.fill_uniform(3);
  std::vector<std::int64_t> lengths(6, 1);
  const auto one_key =
      scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask(key_lengths(lengths)));
  ASSERT_EQ(one_key.output.shape(), q.shape());
  for_each_index(q.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(one_key.output(b, h, i, d), v(b, h, 0, d));
  });

  lengths[3] = 0;
  const auto no_key =
      scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask(key_lengths(lengths)));
  for_each_index(q.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(no_key.output(b, h, i, d), b == 3 ? 0 : v(b, h, 0, d));
  });
}

}  // namespace
}  // namespace test
}  // namespace attn

// Public bug reports: the weights that a call returns.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// facebookresearch/fairseq#3365: the mean over the heads is returned for the heads' own weights.
TEST(Weights, D39BelongToTheirHead) {
  const MeanProbe<> probe(
      1, 2, [](Index j) { return static_cast<double>(j); }, 2, 2);
  const bool keep[] = {true, false, false, true};
  const auto result = scaled_dot_product_attention(probe.q.view(), probe.k.view(), probe.v.view(),
                                                   AnyMask(keep_where(bhsd(keep, {1, 2, 1, 2}))),
                                                   {}, Want::weights);
  ASSERT_EQ(result.weights.shape(), (Shape4{1, 2, 1, 2}));
  const float expected[] = {1, 0, 0, 1};
  for (Index h = 0; h < 2; ++h) {
    for (Index j = 0; j < 2; ++j) EXPECT_EQ(result.weights(0, h, 0, j), expected[2 * h + j]);
  }
}

// huggingface/funes#160, the part that is not about time: the weight of a masked key
// is a subnormal, which the processor multiplies a hundred times slower than 0.
TEST(Weights, D47MaskedWeightsAreZeroNotSubnormal) {
  const Index keys = 4096;
  for (const Index queries : {1, 64}) {
    TestTensor<float> q({1, 1, queries, 64}), k({1, 1, keys, 64}), v({1, 1, keys, 64});
    q.fill_uniform(1, 3);
    k.fill_uniform(2);
    v.fill_uniform(3);
    TestTensor<bool> keep({1, 1, 1, keys});
    keep.fill([](Index, Index, Index, Index j) { return j % 256 == 7; });
    TestTensor<float> infinite({1, 1, 1, keys}), finite({1, 1, 1, keys});
    infinite.fill(
        [&](Index, Index, Index, Index j) { return keep(0, 0, 0, j) ? 0.0f : -infinity<float>(); });
    finite.fill([&](Index, Index, Index, Index j) { return keep(0, 0, 0, j) ? 0.0f : -1e30f; });
    for (const AnyMask& mask :
         {AnyMask(keep_where(keep.view())), AnyMask(add_bias(infinite.view())),
          AnyMask(add_bias(finite.view()))}) {
      const auto result =
          scaled_dot_product_attention(q.view(), k.view(), v.view(), mask, {}, Want::weights);
      for_each_index(result.weights.shape(), [&](Index b, Index h, Index i, Index j) {
        const float weight = result.weights(b, h, i, j);
        if (keep(0, 0, 0, j)) {
          EXPECT_GT(weight, 0);
        } else {
          ASSERT_TRUE(same_bits(weight, 0.0f)) << weight << " at key " << j;
        }
      });
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

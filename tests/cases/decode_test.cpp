// Public bug reports: a single query.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

// ggml-org/ggml#1621: one query of a group gives NaN where Sk is an exact multiple of 256.
TEST(Decode, D26KeyLengthsAroundEveryRoundNumber) {
  for (const Index dim : {1, 3, 128}) {
    for (const Index keys : {1, 2, 63, 64, 65, 255, 256, 257, 512, 1024, 4096}) {
      if (dim == 128 && keys > 1024) continue;  // the reference would take seconds
      SCOPED_TRACE(::testing::Message() << "dim " << dim << ", " << keys << " keys");
      const Sizes sizes{1, 16, 2, 2, 1, keys, dim, dim};
      const Inputs<float> in(sizes);
      expect_attention<float>(in, AnyMask(), Formula{});
    }
  }
}

TEST(Decode, D26WindowOfOneIsTheValueItself) {
  const Inputs<float> in({1, 16, 2, 2, 1, 257, 8, 8});
  const auto result = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(),
                                                   AnyMask(sliding_window(0, 0)));
  for_each_index(result.output.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(result.output(b, h, i, d), in.v(b, h / 8, 256, d));
  });
}

// The prompt of 20 tokens with a window of 8, without a cache.
TEST(Decode, D26PromptLongerThanItsWindow) {
  const std::vector<double> rows = bits_probe(20, 20).outputs(sliding_window(7, 0));
  EXPECT_NEAR(rows[19], 130560, 130560 * mean_tolerance<float>());
}

}  // namespace
}  // namespace test
}  // namespace attn

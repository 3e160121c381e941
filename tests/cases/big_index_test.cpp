// Public bug reports: offsets and counters beyond 16 and 32 bits, without much memory.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"
#include "support/special_memory.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kFar = Index{1} << 30;

// ml-explore/mlx#2894: offsets into a boolean mask of more than 2^31 elements wrap.
TEST(BigIndex, D27MaskRowsTwoGibibytesApart) {
  const Index stride = kFar + 1;
  const SparseMemory memory(static_cast<std::size_t>(2 * stride + 8));
  const Tensor4<bool> keep(static_cast<bool*>(memory.data()), {1, 1, 3, 8}, {0, 0, stride, 1});
  keep(0, 0, 0, 1) = keep(0, 0, 1, 1) = keep(0, 0, 2, 5) = true;
  EXPECT_EQ(bits_probe(3, 8).outputs(keep_where(keep)), (std::vector<double>{2, 2, 32}));
}

// Dao-AILab/flash-attention#772: with a batch stride of 2^30, batch 2 lies 2^31 elements away.
// (Appending to such a cache is a test of the cache.)
TEST(BigIndex, D28BatchesFourGibibytesApart) {
  const Shape4 shape{3, 1, 2, 4};
  const std::size_t bytes = static_cast<std::size_t>(2 * kFar + 8) * sizeof(float);
  const SparseMemory k_memory(bytes), v_memory(bytes), out_memory(bytes);
  const auto far = [&](const SparseMemory& memory) {
    return Tensor4<float>(static_cast<float*>(memory.data()), shape, {kFar, 8, 4, 1});
  };
  const Inputs<float> near({3, 1, 1, 1, 2, 2, 4, 4});
  const Tensor4<float> k = far(k_memory), v = far(v_memory), out = far(out_memory);
  for_each_index(shape, [&](Index b, Index h, Index i, Index d) {
    k(b, h, i, d) = near.k(b, h, i, d);
    v(b, h, i, d) = near.v(b, h, i, d);
  });
  scaled_dot_product_attention(near.q.view(), k, v, out, AnyMask());
  const auto expected =
      scaled_dot_product_attention(near.q.view(), near.k.view(), near.v.view(), AnyMask());
  EXPECT_TRUE(same_bits(out, expected.output.view()));
}

// pytorch/pytorch#119320: wrong only past some thousands of batches.
TEST(BigIndex, D29SeventyThousandBatches) {
  const Index batch = 70000;
  const Inputs<float> one({1, 2, 2, 2, 2, 2, 8, 8});
  const auto repeated = [&](const TestTensor<float>& tensor) {
    const Tensor4<const float> view = tensor.view();
    Stride4 stride = view.stride();
    stride.batch = 0;
    return Tensor4<const float>(view.data(), {batch, 2, 2, 8}, stride);
  };
  const auto result =
      scaled_dot_product_attention(repeated(one.q), repeated(one.k), repeated(one.v), AnyMask());
  const auto expected =
      scaled_dot_product_attention(one.q.view(), one.k.view(), one.v.view(), AnyMask());
  for (Index b = 0; b < batch; ++b) {
    ASSERT_TRUE(same_bits(result.output.view().slice_batch(b, 1), expected.output.view()))
        << "batch " << b;
  }
}

// pytorch/pytorch#162588: right up to a length of 65536, wrong from 65537 on.
TEST(BigIndex, D30LengthsAroundTwoToTheSixteen) {
  for (const Index length : {65535, 65536, 65537}) {
    const MeanProbe<> probe(length, length, [](Index j) { return static_cast<double>(j % 7); });
    const std::vector<double> rows = probe.outputs(causal() & sliding_window(3, kUnlimited));
    for (Index i = length - 8; i < length; ++i) {
      const double sum = static_cast<double>(i % 7 + (i - 1) % 7 + (i - 2) % 7 + (i - 3) % 7);
      EXPECT_NEAR(rows[static_cast<std::size_t>(i)], sum / 4, 6 * mean_tolerance<float>())
          << "row " << i << " of " << length;
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

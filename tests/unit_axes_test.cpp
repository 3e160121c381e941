// Axes of length 1 do not step: their strides may be anything. NumPy writes the largest integer.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "attn/attention.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layers/linear.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

constexpr Index kFar = (std::numeric_limits<Index>::max)();

/// The same view with `stride` on its axes of length 1.
template <class T>
Tensor4<T> with_strides(const Tensor4<T>& view, Index stride) {
  Stride4 s = view.stride();
  if (view.batch() == 1) s.batch = stride;
  if (view.heads() == 1) s.heads = stride;
  if (view.length() == 1) s.length = stride;
  if (view.dim() == 1) s.dim = stride;
  return Tensor4<T>(view.data(), view.shape(), s);
}

std::vector<float> numbers(Index count) {
  std::vector<float> x;
  for (Index i = 0; i < count; ++i) {
    x.push_back(static_cast<float>(test::uniform(3, static_cast<std::uint64_t>(i))));
  }
  return x;
}

// Each shape has other axes of length 1; 20 queries are a row-lane tile, 1 a dim-lane one.
TEST(UnitAxes, MayHaveAnyStride) {
  for (const Shape4& q_shape : {Shape4{1, 1, 20, 8}, Shape4{1, 4, 1, 8}, Shape4{3, 1, 1, 1},
                                Shape4{1, 1, 1, 1}, Shape4{1, 2, 20, 1}}) {
    for (const Index keys : {1, 300}) {
      const Shape4 k_shape{1, 1, keys, q_shape.dim};
      const std::vector<float> q = numbers(q_shape.size()), k = numbers(k_shape.size());
      const std::vector<float> bias = numbers(keys);
      std::vector<float> expected(q.size()), found(q.size(), 7);
      const auto attend = [&](std::vector<float>& out, Index stride) {
        const Tensor4<const float> q_view(q.data(), q_shape), k_view(k.data(), k_shape);
        const Tensor4<const float> bias_view(bias.data(), Shape4{1, 1, 1, keys});
        const Tensor4<float> out_view(out.data(), q_shape);
        if (stride == 0) {
          scaled_dot_product_attention(q_view, k_view, k_view, out_view, add_bias(bias_view));
          return;
        }
        scaled_dot_product_attention(with_strides(q_view, stride), with_strides(k_view, stride),
                                     with_strides(k_view, stride), with_strides(out_view, stride),
                                     add_bias(with_strides(bias_view, stride)));
      };
      attend(expected, 0);
      for (const Index stride : {kFar, -kFar, Index{12345}}) {
        attend(found, stride);
        EXPECT_EQ(found, expected);
      }
    }
  }
}

TEST(UnitAxes, MayHaveAnyStrideInLinearAndCaches) {
  const std::vector<float> x = numbers(8), weight = numbers(8);
  std::vector<float> expected(1), found(1, 7);
  const Tensor4<const float> x_view(x.data(), Shape4{1, 1, 1, 8});
  const Tensor4<const float> weight_view(weight.data(), Shape4{1, 1, 1, 8});
  const Tensor4<float> out(expected.data(), Shape4{1, 1, 1, 1});
  const Tensor4<float> far_out = with_strides(Tensor4<float>(found.data(), out.shape()), kFar);
  linear(x_view, LinearWeights<float>{weight_view, {}}, out);
  linear(with_strides(x_view, kFar), LinearWeights<float>{with_strides(weight_view, kFar), {}},
         far_out);
  EXPECT_EQ(found, expected);

  KeyValueCache<float> cache(1, 1, 4, 8);
  cache.append(with_strides(x_view, kFar), with_strides(weight_view, kFar));
  for (Index d = 0; d < 8; ++d) {
    EXPECT_EQ(cache.keys()(0, 0, 0, d), x[static_cast<std::size_t>(d)]);
    EXPECT_EQ(cache.values()(0, 0, 0, d), weight[static_cast<std::size_t>(d)]);
  }
}

}  // namespace
}  // namespace attn

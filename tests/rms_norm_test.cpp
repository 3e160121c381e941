// rms_norm held to its formula, and what it refuses.
#include "attn/layers/rms_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  TestTensor<float> x({2, 3, 5, 19}, Layout::inner_stride), gamma({1, 1, 1, 19});
  x.fill_uniform(1, 4);
  gamma.fill_uniform(2, 2);
  TestTensor<double> out({2, 3, 5, 19});
  rms_norm(x.view(), RmsNormWeights<float>{gamma.view().data(), 1e-3}, out.view());
  for_each_index(x.shape(), [&](Index b, Index h, Index i, Index d) {
    double sum = 0;
    for (Index e = 0; e < 19; ++e) {
      sum += static_cast<double>(x(b, h, i, e)) * static_cast<double>(x(b, h, i, e));
    }
    const double expected = static_cast<double>(x(b, h, i, d)) / std::sqrt(sum / 19 + 1e-3) *
                            static_cast<double>(gamma(0, 0, 0, d));
    EXPECT_NEAR(out(b, h, i, d), expected, 1e-13);
  });
  // In place, without factors; zeros stay zero.
  TestTensor<float> zeros({1, 1, 2, 4});
  zeros.fill([](Index, Index, Index i, Index) { return i == 0 ? 0 : 3; });
  rms_norm(zeros.view(), RmsNormWeights<float>{nullptr, 0}, zeros.view());
  EXPECT_EQ(zeros(0, 0, 0, 1), 0);
  EXPECT_FLOAT_EQ(zeros(0, 0, 1, 1), 1);
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  TestTensor<float> x({1, 1, 2, 4}), out({1, 1, 2, 5});
  EXPECT_EQ(
      message_of<ShapeError>([&] { rms_norm(x.view(), RmsNormWeights<float>{}, out.view()); }),
      "rms_norm: out must have the shape of x; got x [1, 1, 2, 4], out [1, 1, 2, 5]");
  EXPECT_EQ(message_of<OptionError>([&] {
              rms_norm(x.view(), RmsNormWeights<float>{nullptr, -1}, x.view());
            }),
            "rms_norm: epsilon must be finite and 0 or more, got -1; got out [1, 1, 2, 4]");
  EXPECT_TRUE(out.is_untouched());
}

}  // namespace
}  // namespace test
}  // namespace attn

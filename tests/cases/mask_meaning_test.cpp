// Public bug reports: what a mask's elements mean, and how its shape is read.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

// mlpack/mlpack#3573: nobody can tell whether a 1 keeps or masks. (An integer mask does not
// compile: the compile-fail tests have it.)
TEST(MaskMeaning, D10PolarityIsInTheName) {
  const MeanProbe<> probe(1, 3, [](Index j) { return std::exp2(static_cast<double>(j)); });
  const bool keep[] = {true, true, false}, drop[] = {false, false, true};
  const std::uint8_t keep_bytes[] = {1, 2, 0};
  const float bias[] = {0, 0, -infinity<float>()};
  const Shape4 shape{1, 1, 1, 3};
  expect_means(probe.outputs(keep_where(bhsd(keep, shape))), {1.5});
  expect_means(probe.outputs(drop_where(bhsd(drop, shape))), {1.5});
  expect_means(probe.outputs(keep_where(bhsd(keep_bytes, shape))), {1.5});
  expect_means(probe.outputs(add_bias(bhsd(bias, shape))), {1.5});
}

// pytorch/pytorch#107084: a bias is taken for a boolean mask, not zero = masked.
TEST(MaskMeaning, D11FloatMaskIsAdded) {
  const MeanProbe<> probe(1, 2, [](Index j) { return j == 0 ? 1.0 : 0.0; });
  const Shape4 shape{1, 1, 1, 2};
  const float three_to_one[] = {std::log(3.0f), 0};
  const float no_zero[] = {0.5f, 0.25f};
  // Two roundings of a score below 2, and those of a mean.
  const double tolerance = 4 * 0x1p-23 + mean_tolerance<float>();
  EXPECT_NEAR(probe.outputs(add_bias(bhsd(three_to_one, shape)))[0], 0.75, tolerance);
  EXPECT_NEAR(probe.outputs(add_bias(bhsd(no_zero, shape)))[0], 0.562176501, tolerance);
}

class MaskBroadcast : public ::testing::TestWithParam<Shape4> {};

// keras-team/keras#21483: a mask with axes of size 1 is not broadcast, or along the wrong axis.
TEST_P(MaskBroadcast, D12IsTheExpandedMaskBitForBit) {
  const Shape4 full{2, 3, 4, 5}, shape = GetParam();
  const Inputs<float> in({2, 3, 3, 3, 4, 5, 7, 6});
  const auto in_shape = [&](Index extent, Index i) { return extent == 1 ? 0 : i; };

  TestTensor<bool> keep(shape), keep_all(full);
  TestTensor<float> bias(shape), bias_all(full);
  bias.fill_uniform(4);
  keep.fill([&](Index b, Index h, Index i, Index j) { return bias(b, h, i, j) < 0.4f; });
  for_each_index(full, [&](Index b, Index h, Index i, Index j) {
    const Index at[] = {in_shape(shape.batch, b), in_shape(shape.heads, h),
                        in_shape(shape.length, i), in_shape(shape.dim, j)};
    keep_all(b, h, i, j) = keep(at[0], at[1], at[2], at[3]);
    bias_all(b, h, i, j) = bias(at[0], at[1], at[2], at[3]);
  });
  const auto attend = [&](const AnyMask& mask) {
    return scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask, {},
                                        Want::weights);
  };
  const auto expect_same = [&](const AnyMask& small, const AnyMask& large) {
    const auto a = attend(small), b = attend(large);
    EXPECT_TRUE(same_bits(a.output.view(), b.output.view()));
    EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view()));
  };
  expect_same(keep_where(keep.view()), keep_where(keep_all.view()));
  expect_same(add_bias(bias.view()), add_bias(bias_all.view()));

  // And the expanded mask is read as it lies.
  expect_attention<float>(in, AnyMask(keep_where(keep_all.view()) & add_bias(bias_all.view())),
                          keeps([&](Index b, Index h, Index i, Index j) {
                            return keep_all(b, h, i, j);
                          }) & changes([&](auto score, Index b, Index h, Index i, Index j) {
                            return score + static_cast<decltype(score)>(bias_all(b, h, i, j));
                          }));
}

INSTANTIATE_TEST_SUITE_P(Shapes, MaskBroadcast,
                         ::testing::Values(Shape4{1, 1, 1, 5}, Shape4{2, 1, 1, 5},
                                           Shape4{2, 1, 4, 5}, Shape4{1, 3, 4, 5},
                                           Shape4{2, 3, 4, 5}, Shape4{1, 1, 4, 1},
                                           Shape4{2, 1, 4, 1}));

TEST(MaskMeaning, D12OtherShapesAreErrors) {
  TestTensor<float> q({2, 3, 4, 7}), k({2, 3, 5, 7}), v({2, 3, 5, 6}), out({2, 3, 4, 6});
  for (const Shape4 shape : {Shape4{1, 1, 5, 4}, Shape4{3, 1, 4, 5}, Shape4{1, 2, 4, 5},
                             Shape4{2, 3, 4, 4}, Shape4{0, 1, 1, 5}}) {
    TestTensor<bool> keep(shape);
    TestTensor<float> bias(shape);
    for (const AnyMask& mask : {AnyMask(keep_where(keep.view())), AnyMask(drop_where(keep.view())),
                                AnyMask(add_bias(bias.view()))}) {
      EXPECT_THROW(scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), mask),
                   ShapeError);
    }
  }
  EXPECT_TRUE(out.is_untouched());
}

}  // namespace
}  // namespace test
}  // namespace attn

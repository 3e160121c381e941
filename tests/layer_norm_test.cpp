// layer_norm held to its formula: element types, sizes, strides, extreme rows, bits, errors.
#include "attn/layers/layer_norm.hpp"
#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/allocations.hpp"
#include "support/element_types.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::Layout;
using test::message_of;
using test::same_bits;
using test::TestTensor;

template <class T>
class LayerNormOf : public ::testing::Test {};
TYPED_TEST_SUITE(LayerNormOf, test::ElementTypes, test::TypeNames);

/// One row by the formula, in long double.
std::vector<long double> normalized(const std::vector<long double>& row, double epsilon) {
  const long double size = static_cast<long double>(row.size());
  long double mean = 0, variance = 0;
  for (const long double x : row) mean += x;
  mean /= size;
  for (const long double x : row) variance += (x - mean) * (x - mean);
  variance /= size;
  std::vector<long double> result;
  for (const long double x : row) {
    result.push_back((x - mean) / std::sqrt(variance + static_cast<long double>(epsilon)));
  }
  return result;
}

/// Holds y to the bound that layer_norm states.
template <class X, class T, class Y>
void expect_normalized(const TestTensor<X>& x, const LayerNormWeights<T>& weights,
                       const TestTensor<Y>& y) {
  using A = AccumulationType<X, T, Y>;
  const Shape4 shape = x.shape();
  const long double roundings = static_cast<long double>(shape.dim) / 16 + 8;
  test::for_each_index({shape.batch, shape.heads, shape.length, 1}, [&](Index b, Index h, Index i,
                                                                        Index) {
    std::vector<long double> row;
    for (Index d = 0; d < shape.dim; ++d) row.push_back(test::widen(x(b, h, i, d)));
    row = normalized(row, weights.epsilon);
    for (Index d = 0; d < shape.dim; ++d) {
      const long double z = row[static_cast<std::size_t>(d)];
      const long double gamma = weights.gamma ? test::widen(weights.gamma[d]) : 1;
      const long double beta = weights.beta ? test::widen(weights.beta[d]) : 0;
      const long double expected = z * gamma + beta;
      const long double bar = roundings * test::epsilon<A>() * (1 + std::abs(z)) * std::abs(gamma);
      const long double smallest = test::widen((std::numeric_limits<Y>::denorm_min)());
      // The sum with beta is rounded in A, the result to Y.
      const long double rounding = (std::max)(
          (test::epsilon<Y>() + test::epsilon<A>()) * (std::abs(expected) + bar) / 2, smallest);
      const long double error = std::abs(test::widen(y(b, h, i, d)) - expected);
      ASSERT_LE(error, bar + rounding) << "at (" << b << ", " << h << ", " << i << ", " << d << ")";
    }
  });
  EXPECT_TRUE(y.gaps_are_untouched());
}

template <class T>
struct Affine {
  std::vector<T> gamma, beta;

  explicit Affine(Index dim, std::uint64_t seed = 91) {
    for (Index d = 0; d < dim; ++d) {
      const auto at = static_cast<std::uint64_t>(d);
      gamma.push_back(test::to<T>(1 + test::uniform(seed, at)));
      beta.push_back(test::to<T>(test::uniform(seed + 1, at)));
    }
  }
  LayerNormWeights<T> weights() const { return {gamma.data(), beta.data()}; }
};

TYPED_TEST(LayerNormOf, EveryDim) {
  for (const Index dim : {1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 100, 1000}) {
    TestTensor<TypeParam> x({2, 1, 3, dim}), y(x.shape());
    x.fill_uniform(92, 2);
    const Affine<TypeParam> affine(dim);
    LayerNormWeights<TypeParam> weights = affine.weights();
    layer_norm(x.view(), weights, y.view());
    expect_normalized(x, weights, y);
    weights.beta = nullptr;
    layer_norm(x.view(), weights, y.view());
    expect_normalized(x, weights, y);
    weights.gamma = nullptr;
    layer_norm(x.view(), weights, y.view());
    expect_normalized(x, weights, y);
  }
}

TYPED_TEST(LayerNormOf, EveryLayoutAndInPlace) {
  const Shape4 shape{2, 3, 5, 11};
  const Affine<TypeParam> affine(shape.dim);
  TestTensor<TypeParam> plain(shape), expected(shape);
  plain.fill_uniform(93, 2);
  layer_norm(plain.view(), affine.weights(), expected.view());
  expect_normalized(plain, affine.weights(), expected);
  for (const Layout layout : test::kAllLayouts) {
    TestTensor<TypeParam> x(shape, layout), y(shape, layout);
    x.fill_uniform(93, 2);
    layer_norm(x.view(), affine.weights(), y.view());
    EXPECT_TRUE(same_bits(y.view(), expected.view()));
    EXPECT_TRUE(y.gaps_are_untouched());
    layer_norm(x.view(), affine.weights(), x.view());
    EXPECT_TRUE(same_bits(x.view(), expected.view()));
    EXPECT_TRUE(x.gaps_are_untouched());
  }
}

TEST(LayerNorm, ElementTypesMayDiffer) {
  TestTensor<half> x({1, 1, 4, 20});
  x.fill_uniform(94, 2);
  const Affine<float> affine(20);
  TestTensor<bfloat16> narrow(x.shape());
  layer_norm(x.view(), affine.weights(), narrow.view());
  expect_normalized(x, affine.weights(), narrow);
  TestTensor<double> wide(x.shape());
  layer_norm(x.view(), affine.weights(), wide.view());
  expect_normalized(x, affine.weights(), wide);
}

// A mean far larger than the spread: one pass (mean of squares minus square of mean) or a mean that
// is not corrected would lose most digits.
TEST(LayerNorm, RowsFarFromZero) {
  for (const float mean : {1e4f, -1e6f}) {
    TestTensor<float> x({1, 1, 3, 300}), y(x.shape());
    x.fill([&](Index, Index, Index i, Index d) {
      return mean + static_cast<float>(test::uniform(95, static_cast<std::uint64_t>(300 * i + d)));
    });
    layer_norm(x.view(), LayerNormWeights<float>{}, y.view());
    expect_normalized(x, LayerNormWeights<float>{}, y);
  }
}

TEST(LayerNorm, ConstantRowsGiveBeta) {
  const Affine<float> affine(13);
  for (const double epsilon : {1e-5, 0.0}) {
    LayerNormWeights<float> weights = affine.weights();
    weights.epsilon = epsilon;
    TestTensor<float> x({1, 1, 1, 13}), y(x.shape());
    x.fill_value(0.1f);
    layer_norm(x.view(), weights, y.view());
    test::for_each_index(y.shape(), [&](Index b, Index h, Index i, Index d) {
      EXPECT_EQ(y(b, h, i, d), affine.beta[static_cast<std::size_t>(d)]);
    });
  }
}

TEST(LayerNorm, EpsilonIsAddedToTheVariance) {
  TestTensor<double> x({1, 1, 1, 2}), y(x.shape());
  x(0, 0, 0, 0) = 1;
  x(0, 0, 0, 1) = -1;  // the biased variance is 1 (the unbiased one 2)
  LayerNormWeights<double> weights;
  weights.epsilon = 3;
  layer_norm(x.view(), weights, y.view());
  EXPECT_DOUBLE_EQ(y(0, 0, 0, 0), 0.5);
  EXPECT_DOUBLE_EQ(y(0, 0, 0, 1), -0.5);
}

TEST(LayerNorm, NotFiniteInputsStayInTheirRow) {
  TestTensor<float> x({1, 1, 3, 9}), clean(x.shape()), y(x.shape());
  x.fill_uniform(96);
  layer_norm(x.view(), LayerNormWeights<float>{}, clean.view());
  x(0, 0, 0, 4) = test::quiet_nan<float>();
  x(0, 0, 1, 5) = test::infinity<float>();
  layer_norm(x.view(), LayerNormWeights<float>{}, y.view());
  for (Index d = 0; d < 9; ++d) {
    EXPECT_TRUE(std::isnan(y(0, 0, 0, d)));
    EXPECT_TRUE(std::isnan(y(0, 0, 1, d)));
    EXPECT_TRUE(same_bits(y(0, 0, 2, d), clean(0, 0, 2, d)));
  }
}

TEST(LayerNorm, SizesOfZero) {
  for (const Shape4 shape :
       {Shape4{0, 1, 2, 3}, Shape4{2, 0, 2, 3}, Shape4{2, 1, 0, 3}, Shape4{2, 1, 2, 0}}) {
    TestTensor<float> x(shape), y(shape);
    layer_norm(x.view(), LayerNormWeights<float>{}, y.view());
    EXPECT_TRUE(y.is_untouched());
  }
}

// Rows are split among the workers, each whole; nothing is allocated.
TYPED_TEST(LayerNormOf, BitsDoNotDependOnTheExecutor) {
  const Shape4 shape{3, 2, 40, 900};  // 13 work items
  TestTensor<TypeParam> x(shape), expected(shape);
  x.fill_uniform(97, 2);
  const Affine<TypeParam> affine(shape.dim);
  test::allocations().reset();
  layer_norm(x.view(), affine.weights(), expected.view());
  EXPECT_EQ(test::allocations().count, 0u);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    TestTensor<TypeParam> y(shape);
    layer_norm(x.view(), affine.weights(), y.view(), &pool);
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << threads << " threads";
  }
}

TEST(LayerNormErrors, BeforeAnythingIsWritten) {
  TestTensor<float> x({2, 1, 3, 4}), y({2, 1, 3, 5}), same({2, 1, 3, 4});
  x.fill_uniform(98);
  EXPECT_EQ(
      message_of<ShapeError>([&] { layer_norm(x.view(), LayerNormWeights<float>{}, y.view()); }),
      "layer_norm: out must have the shape of x; got x [2, 1, 3, 4], out [2, 1, 3, 5]");
  const std::pair<double, std::string> wrong[] = {{-1.0, "-1"},
                                                  {std::numeric_limits<double>::infinity(), "inf"}};
  for (const auto& [epsilon, text] : wrong) {
    LayerNormWeights<float> weights;
    weights.epsilon = epsilon;
    EXPECT_EQ(message_of<OptionError>([&] { layer_norm(x.view(), weights, same.view()); }),
              "layer_norm: epsilon must be finite and 0 or more, got " + text +
                  "; got x [2, 1, 3, 4], out [2, 1, 3, 4]");
  }
  EXPECT_TRUE(y.is_untouched());
  EXPECT_TRUE(same.is_untouched());

  std::vector<float> memory(50);
  const Tensor4<float> first(memory.data(), {1, 1, 3, 4}), shifted(memory.data() + 1, {1, 1, 3, 4});
  EXPECT_EQ(message_of<ShapeError>([&] { layer_norm(first, LayerNormWeights<float>{}, shifted); }),
            "layer_norm: out overlaps x in memory; got x [1, 1, 3, 4], out [1, 1, 3, 4]");
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        layer_norm(first, LayerNormWeights<float>{memory.data() + 20, memory.data() + 11}, first);
      }),
      "layer_norm: out overlaps beta in memory; got gamma [1, 1, 1, 4], beta [1, 1, 1, 4], "
      "out [1, 1, 3, 4]");
}

}  // namespace
}  // namespace attn

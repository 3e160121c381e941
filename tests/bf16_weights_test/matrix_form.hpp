// tests/bf16_weights_test/matrix_form.hpp - calls in the matrix form, over every matrix unit: the
// CPU's where it has them, else their models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/attention.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/plain_tiles.hpp"
#include "support/results.hpp"

namespace attn {

/// Runs over every matrix unit.
class Bf16Weights : public testing::TestWithParam<const detail::MatrixUnit*> {
 protected:
  test::Results<float> run(const test::Sizes& sizes, const test::Inputs<Eigen::bfloat16>& in,
                           const AnyMask& mask, const AttentionOptions& options = {},
                           test::Layout layout = test::Layout::contiguous) const {
    test::Results<float> results(sizes, layout);
    EXPECT_TRUE(test::attend_with<float>(GetParam(), in.q.view(), in.k.view(), in.v.view(),
                                         results.out.view(), mask, options, results.extra()))
        << "not in the matrix form: " << sizes;
    return results;
  }
  void expect_accurate(const test::Sizes& sizes, const test::Inputs<Eigen::bfloat16>& in,
                       const AnyMask& mask, const test::Formula& formula,
                       const AttentionOptions& options,
                       test::Layout layout = test::Layout::contiguous) const;
};

/// Holds a call to attention by the book, entry by entry. With u = 2^-24:
///
///   a score is off by       e = u (18 + Dk / 32 + 3) |scale| max(|q| |k|) Dk: each product
///                           passes a chain of 16, the sums of two chains and of the chunks before,
///                           scale and bias (softcap only shrinks errors)
///   a weight, relatively,   by 2 e + 2 u (6 + 3 S): its own score and those of the denominator,
///                           the exponential and what the float kernels are granted
///   the output by           (2^-8 + that + u (18 + Sk / 16)) sum |weight v|: the weight's
///                           rounding, and the roundings that a product passes, rescaling among
///                           them
///
/// Units of dot products sum in a single chain: a product passes up to Dk or Sk roundings more.
inline void Bf16Weights::expect_accurate(const test::Sizes& sizes,
                                         const test::Inputs<Eigen::bfloat16>& in,
                                         const AnyMask& mask, const test::Formula& formula,
                                         const AttentionOptions& options,
                                         test::Layout layout) const {
  const auto q = test::in_double(in.q.view()), k = test::in_double(in.k.view());
  const auto v = test::in_double(in.v.view());
  Tensor4Buffer<double> magnitudes(v.shape());
  for (Index i = 0; i < v.size(); ++i) magnitudes.data()[i] = std::abs(v.data()[i]);
  const test::Answer<double> exact = test::answer_in<double>(q, k, v, formula, options);
  const test::Answer<double> sums = test::answer_in<double>(q, k, magnitudes, formula, options);

  const double u = 0x1p-24, dims = static_cast<double>(sizes.key_dim);
  const double scale =
      options.scale ? std::abs(*options.scale) : 1 / std::sqrt((std::max)(1.0, dims));
  const double product =
      static_cast<double>(test::largest_magnitude(q.view()) * test::largest_magnitude(k.view()));
  const double keys = static_cast<double>(sizes.key_length);
  const double chain = &test::model_of(*GetParam()) == &test::plain_dots() ? 1 : 0;
  const double score_error = u * (21 + dims / 32 + chain * dims) * scale * product * dims;
  const double weight_error =
      2 * score_error + 2 * u * (6 + 3 * static_cast<double>(exact.largest_score)) + u * keys;
  const double out_error = 0x1p-8 + weight_error + u * (18 + keys / 16 + chain * keys);

  const test::Results<float> actual = run(sizes, in, mask, options, layout);
  int failures = 0;
  const auto hold = [&](const char* what, double x, double y, double bar) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    if (!(std::abs(x - y) <= bar) && ++failures <= 3) {
      ADD_FAILURE() << what << " is " << x << ", the reference " << y << ": off by "
                    << std::abs(x - y) << ", allowed " << bar << "; " << sizes;
    }
  };
  test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
    hold("out", static_cast<double>(actual.out(b, h, i, d)), exact.out(b, h, i, d),
         out_error * sums.out(b, h, i, d) + 0x1p-120);
  });
  test::for_each_index(sizes.scores(), [&](Index b, Index h, Index i, Index j) {
    const double weight = exact.weights(b, h, i, j);
    hold("weight", static_cast<double>(actual.weights(b, h, i, j)), weight,
         weight_error * weight + 0x1p-100);
  });
  test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
    hold("log_sum_exp", static_cast<double>(actual.log_sum_exp(b, h, i, 0)),
         exact.log_sum_exp(b, h, i, 0), weight_error + u * 32);
  });
  EXPECT_TRUE(actual.out.gaps_are_untouched());
  EXPECT_TRUE(actual.weights.gaps_are_untouched());
  EXPECT_TRUE(actual.log_sum_exp.gaps_are_untouched());
}

/// One row tile and several, rows of several heads in one, odd dims and lengths, chunks of keys
/// that are not whole, several key tiles, a row block that is not whole, more queries than keys.
inline std::vector<test::Sizes> matrix_sizes() {
  return {{2, 4, 2, 2, 9, 11, 1, 3},    {1, 6, 3, 2, 31, 65, 31, 33},
          {1, 2, 1, 1, 70, 33, 33, 16}, {1, 2, 1, 1, 40, 300, 65, 1},
          {2, 2, 2, 1, 21, 6, 64, 17},  {1, 1, 1, 1, 33, 520, 16, 40}};
}

/// The forms of work: one block of rows, several, split keys.
inline std::vector<test::Sizes> bit_sizes() {
  return {
      {2, 6, 3, 3, 31, 150, 20, 33}, {1, 2, 1, 1, 170, 300, 5, 600}, {1, 4, 2, 2, 20, 4200, 4, 5}};
}

}  // namespace attn

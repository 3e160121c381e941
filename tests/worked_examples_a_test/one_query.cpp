// Article A, number by number: one query over a sentence, scoring functions, softmax and its
// temperature. Where a printed figure is right to its digits it is asserted; where it is not, the
// right value is, and a comment says what the article prints and why.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attn/attn.hpp"
#include "support/articles.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using test::ArticleMatrix;
using test::decimals;
using test::expect_misprint;
using test::expect_rows;
using test::matrix;

// ---- A3: the query "sat" over "The cat sat on the mat", d = 4.

struct Sentence {
  ArticleMatrix q = matrix({{1.2, -0.5, 0.8, 0.3}});
  ArticleMatrix k = matrix({{0.9, 0.1, -0.2, 0.4},
                            {0.3, 1.2, 0.5, -0.1},
                            {0.6, -0.3, 0.7, 0.9},
                            {-0.2, 0.5, 0.1, 0.3},
                            {0.8, 0.0, 0.2, -0.1},
                            {0.1, 0.4, -0.3, 0.6}});
  ArticleMatrix v = matrix({{0.2, 0.3, -0.1, 0.4},
                            {0.5, -0.2, 0.8, 0.1},
                            {0.3, 0.7, 0.2, -0.3},
                            {-0.1, 0.4, 0.5, 0.2},
                            {0.4, 0.1, -0.2, 0.3},
                            {0.0, 0.6, 0.3, 0.5}});
};

TEST(ArticleA3, ScoresOfTheSentence) {
  const Sentence s;
  const auto look = inspect_attention(view(s.q), view(s.k), view(s.v), 0, 0);
  expect_rows("raw", look.raw.values.view(), {{0.99, 0.13, 1.70, -0.32, 1.09, -0.14}}, 1e-15);
  expect_rows("scaled", look.scaled.values.view(), {{0.495, 0.065, 0.85, -0.16, 0.545, -0.07}},
              1e-15);
}

TEST(ArticleA3, WeightsAndOutputOfTheSentence) {
  const Sentence s;
  const auto result =
      scaled_dot_product_attention(view(s.q), view(s.k), view(s.v), no_mask(), {}, Want::weights);
  const auto weights = result.weights.view();
  expect_rows("weights", weights, {{0.191727, 0.124720, 0.273437, 0.099591, 0.201557, 0.108970}},
              decimals(6));
  expect_rows("output", result.output.view(), {{0.253400, 0.349353, 0.177466, 0.142002}},
              decimals(6));

  // The article rounds every exponential and their sum to two decimals (8.55), so its figures agree
  // to 1.1e-3 only.
  expect_rows("weights, printed", weights, {{0.192, 0.125, 0.274, 0.099, 0.201, 0.109}}, 1.1e-3);
  expect_rows("output, printed", result.output.view(), {{0.254, 0.350, 0.178, 0.142}}, 1.1e-3);
  // To their digits these are right,
  EXPECT_NEAR(weights(0, 0, 0, 0), 0.192, decimals(3));
  EXPECT_NEAR(weights(0, 0, 0, 1), 0.125, decimals(3));
  EXPECT_NEAR(weights(0, 0, 0, 5), 0.109, decimals(3));
  EXPECT_NEAR(result.output(0, 0, 0, 3), 0.142, decimals(3));
  // and these are not: "sat" (the article: 0.274), "on" (0.099), "the" (0.201), and three dims.
  expect_misprint(weights(0, 0, 0, 2), 0.274, 3);
  expect_misprint(weights(0, 0, 0, 3), 0.099, 3);
  expect_misprint(weights(0, 0, 0, 4), 0.201, 3);
  expect_misprint(result.output(0, 0, 0, 0), 0.254, 3);
  expect_misprint(result.output(0, 0, 0, 1), 0.350, 3);
  expect_misprint(result.output(0, 0, 0, 2), 0.178, 3);
}

// ---- A2: other scoring functions, with the functions of today.

/// The weights of softmax(score(key)) over the keys of the sentence, computed directly.
template <class Score>
std::vector<double> softmax_of(const ArticleMatrix& k, const Score& score) {
  std::vector<double> weights;
  double sum = 0;
  for (Eigen::Index j = 0; j < k.rows(); ++j) {
    weights.push_back(std::exp(score(k.row(j))));
    sum += weights.back();
  }
  for (double& w : weights) w /= sum;
  return weights;
}

void expect_weights(const Tensor4Buffer<double>& actual, const std::vector<double>& expected) {
  for (std::size_t j = 0; j < expected.size(); ++j) {
    EXPECT_NEAR(actual(0, 0, 0, static_cast<Index>(j)), expected[j], 1e-15) << j;
  }
}

// cos(q, k) is the dot product of rows of length 1.
TEST(ArticleA2, CosineSimilarityAsScore) {
  const Sentence s;
  const ArticleMatrix q = s.q.rowwise().normalized(), k = s.k.rowwise().normalized();
  AttentionOptions options;
  options.scale = 3;  // a temperature: cosines lie within -1 and 1
  const auto result =
      scaled_dot_product_attention(view(q), view(k), view(s.v), no_mask(), options, Want::weights);
  expect_weights(result.weights, softmax_of(s.k, [&](const auto& key) {
                   return 3 * s.q.row(0).dot(key) / (s.q.row(0).norm() * key.norm());
                 }));
}

// -|q - k|^2 = 2 q.k - |k|^2 and a constant of the row, which softmax does not see.
TEST(ArticleA2, EuclideanDistanceAsScore) {
  const Sentence s;
  const ArticleMatrix bias = -s.k.rowwise().squaredNorm().transpose();
  AttentionOptions options;
  options.scale = 2;
  const auto result = scaled_dot_product_attention(view(s.q), view(s.k), view(s.v),
                                                   add_bias(view(bias)), options, Want::weights);
  expect_weights(result.weights, softmax_of(s.k, [&](const auto& key) {
                   return -(s.q.row(0) - key).squaredNorm();
                 }));
}

TEST(ArticleA2, DotProductAsScore) {
  const Sentence s;
  AttentionOptions options;
  options.scale = 1;
  const auto result = scaled_dot_product_attention(view(s.q), view(s.k), view(s.v), no_mask(),
                                                   options, Want::weights);
  expect_weights(result.weights,
                 softmax_of(s.k, [&](const auto& key) { return s.q.row(0).dot(key); }));
}

// ---- A4: the geometry and the statistics of the dot product; softmax.

/// softmax of four numbers: the weights of one query with these scores.
Tensor4Buffer<double> softmax(const test::Rows& scores) {
  const ArticleMatrix k = matrix(scores).transpose(), q = matrix({{1}});
  AttentionOptions options;
  options.scale = 1;
  return scaled_dot_product_attention(view(q), view(k), view(k), no_mask(), options, Want::weights)
      .weights;
}

TEST(ArticleA4, SoftmaxSaturates) {
  const Tensor4Buffer<double> weights = softmax({{10, 1, 0, -1}});
  expect_rows("weights", weights.view(), {{0.99981, 0.00012, 0.00005, 0.00002}}, decimals(5));
  // The article prints 0.9999 for the first; cut to four decimals it is 0.9998.
  expect_misprint(weights(0, 0, 0, 0), 0.9999, 4);
  EXPECT_NEAR(weights(0, 0, 0, 1), 0.0001, decimals(4));
  EXPECT_NEAR(weights(0, 0, 0, 2), 0.0000, decimals(4));
  EXPECT_NEAR(weights(0, 0, 0, 3), 0.0000, decimals(4));
}

TEST(ArticleA4, SoftmaxOfScaledScoresIsEven) {
  const Tensor4Buffer<double> weights = softmax({{1.0, 0.1, 0.0, -0.1}});
  // The article prints 0.58, 0.21, 0.16, 0.05. That is no softmax of these inputs: e^-0.1 is 0.90
  // of e^0, where its last two differ by a factor of three.
  expect_rows("weights", weights.view(), {{0.47454, 0.19293, 0.17457, 0.15796}}, decimals(5));
  expect_misprint(weights(0, 0, 0, 0), 0.58, 2);
  expect_misprint(weights(0, 0, 0, 1), 0.21, 2);
  expect_misprint(weights(0, 0, 0, 2), 0.16, 2);
  expect_misprint(weights(0, 0, 0, 3), 0.05, 2);
}

// q.k = |q| |k| cos(angle): of queries of one length, the score is largest in the direction of the
// key, 0 at a right angle, smallest in the opposite direction.
TEST(ArticleA4, ScoresFollowTheAngle) {
  const ArticleMatrix k = matrix({{3, 4}});
  const ArticleMatrix q = matrix({{0.6, 0.8}, {-0.8, 0.6}, {-0.6, -0.8}});
  const auto look = inspect_attention(view(q), view(k), view(k), 0, 0);
  expect_rows("raw", look.raw.values.view(), {{5}, {0}, {-5}}, 1e-15);
}

// With unit variance and d = 64, raw scores have a deviation of 8 and scaled ones of 1; 68.3, 95.5
// and 99.73 percent lie within 1, 2 and 3 deviations.
TEST(ArticleA4, DeviationsOfRandomScores) {
  constexpr Index kSamples = 40000, kDim = 64;
  // A query and a key of its own for each sample; with one key, log-sum-exp is the score.
  Tensor4Buffer<double> q({kSamples, 1, 1, kDim}), k({kSamples, 1, 1, kDim}), v({1, 1, 1, 1}),
      out({kSamples, 1, 1, 1}), score({kSamples, 1, 1, 1});
  for (Index i = 0; i < q.size(); ++i) {
    // Uniform within sqrt(3): variance 1.
    q.data()[i] = std::sqrt(3.0) * test::uniform(201, static_cast<std::uint64_t>(i));
    k.data()[i] = std::sqrt(3.0) * test::uniform(202, static_cast<std::uint64_t>(i));
  }
  for (const bool scaled : {false, true}) {
    AttentionOptions options;
    if (!scaled) options.scale = 1;
    scaled_dot_product_attention(q, k, v, out, no_mask(), options,
                                 AttentionOutputs<double>{{}, score.view()});
    const double deviation = scaled ? 1 : 8;
    double squares = 0;
    double within[3] = {};
    for (Index i = 0; i < kSamples; ++i) {
      const double x = score.data()[i] / deviation;
      squares += x * x / kSamples;
      for (int n = 0; n < 3; ++n) within[n] += std::abs(x) < n + 1 ? 1.0 / kSamples : 0;
    }
    // A sum of 64 products is nearly normal (excess kurtosis 0.24 / 64): the sample's deviation has
    // itself one of 1 / sqrt(2 n), a share p one of sqrt(p (1 - p) / n). Five of them.
    EXPECT_NEAR(std::sqrt(squares), 1, 5 / std::sqrt(2.0 * kSamples));
    const double shares[3] = {0.683, 0.955, 0.9973};
    for (int n = 0; n < 3; ++n) {
      EXPECT_NEAR(within[n], shares[n], 5 * std::sqrt(shares[n] * (1 - shares[n]) / kSamples));
    }
  }
}

}  // namespace
}  // namespace attn

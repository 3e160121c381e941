// Article A, number by number: one query over a sentence, scoring functions, softmax and its
// temperature, two heads by hand. Where a printed figure is right to its digits it is asserted;
// where it is not, the right value is, and a comment says what the article prints and why.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "support/articles.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using test::ArticleMatrix;
using test::decimals;
using test::expect_misprint;
using test::expect_rows;
using test::matrix;
using test::same_bits;

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

// ---- A5: two heads, d_model = 4, d_k = 2. Each W is used as X W: (in x out) memory.

/// The matrices of the example. The heads of a projection lie side by side in one (4 x 4) memory;
/// as views with swapped strides they are the weights of one head or of the layer.
struct TwoHeads {
  ArticleMatrix x = matrix({{1.0, 0.5, -0.3, 0.8}, {0.2, 0.9, 0.4, -0.1}});
  ArticleMatrix w_q = matrix(
      {{0.1, 0.2, -0.2, 0.3}, {0.3, 0.4, 0.1, 0.5}, {-0.1, 0.5, 0.4, -0.1}, {0.6, -0.2, 0.2, 0.6}});
  ArticleMatrix w_k = matrix(
      {{0.2, -0.1, 0.3, 0.1}, {0.4, 0.3, -0.1, 0.4}, {0.1, 0.5, 0.2, 0.5}, {-0.3, 0.2, 0.1, -0.2}});
  ArticleMatrix w_v = matrix(
      {{0.3, 0.1, 0.1, 0.4}, {-0.2, 0.4, 0.3, -0.2}, {0.5, 0.2, -0.1, 0.5}, {0.1, -0.3, 0.2, 0.3}});
  ArticleMatrix w_o = matrix(
      {{0.1, 0.2, 0.3, 0.4}, {0.2, 0.1, 0.4, 0.3}, {0.3, 0.4, 0.1, 0.2}, {0.4, 0.3, 0.2, 0.1}});

  /// Columns first .. first + out of (in x out) memory, as the weights of X W.
  static LinearWeights<double> columns(const ArticleMatrix& w, Index first, Index out) {
    return {Tensor4<const double>(w.data() + first, {1, 1, out, w.rows()}, {0, 0, 1, w.cols()}),
            nullptr};
  }
  static LinearWeights<double> head(const ArticleMatrix& w, Index h) {
    return columns(w, 2 * h, 2);
  }
  static LinearWeights<double> all(const ArticleMatrix& w) { return columns(w, 0, 4); }

  MultiHeadAttention<double> layer() const {
    AttentionConfig config;
    config.model_dim = 4;
    config.num_heads = 2;
    return MultiHeadAttention<double>(config, all(w_q), all(w_k), all(w_v), all(w_o));
  }
  Tensor4Buffer<double> project(const LinearWeights<double>& weights) const {
    Tensor4Buffer<double> y({1, 1, 2, weights.weight.length()});
    linear(view(x), weights, y);
    return y;
  }
};

TEST(ArticleA5, Projections) {
  const TwoHeads a;
  // 1. Q1 is right.
  expect_rows("Q1", a.project(a.head(a.w_q, 0)).view(), {{0.76, 0.09}, {0.19, 0.62}}, 1e-15);
  // 2. The article only supposes K1 = [[0.35, 0.25], [0.42, 0.18]] and V1 = [[0.21, 0.33],
  // [0.28, 0.15]] ("suppose we get"); from X they are these.
  expect_rows("K1", a.project(a.head(a.w_k, 0)).view(), {{0.13, 0.06}, {0.47, 0.43}}, 1e-15);
  expect_rows("V1", a.project(a.head(a.w_v, 0)).view(), {{0.13, 0.00}, {0.07, 0.49}}, 1e-15);
}

/// What the article supposes for head 1.
struct SupposedHead {
  ArticleMatrix q = matrix({{0.76, 0.09}, {0.19, 0.62}});
  ArticleMatrix k = matrix({{0.35, 0.25}, {0.42, 0.18}});
  ArticleMatrix v = matrix({{0.21, 0.33}, {0.28, 0.15}});
};

// 3. Its scores [[0.3038, 0.2062], [0.3269, 0.1591]] are Q1 K1: the transpose was forgotten. With
// its own K1, Q1 K1^T and all that follows is:
TEST(ArticleA5, HeadOneWithTheSupposedKeysAndValues) {
  const SupposedHead head;
  const auto look = inspect_attention(view(head.q), view(head.k), view(head.v), 0, 0);
  expect_rows("raw", look.raw.values.view(), {{0.2885, 0.3354}, {0.2215, 0.1914}}, 1e-15);
  expect_rows("scaled", look.scaled.values.view(), {{0.204000, 0.237164}, {0.156624, 0.135340}},
              decimals(6));
  expect_rows("weights", look.weights.values.view(), {{0.491710, 0.508290}, {0.505321, 0.494679}},
              decimals(6));
  expect_rows("output", look.output.values.view(), {{0.245580, 0.238508}, {0.244628, 0.240958}},
              decimals(6));
  // The article: weights [[0.517, 0.483], [0.530, 0.470]], output [[0.244, 0.243], [0.243, 0.245]].
  expect_misprint(look.raw.values(0, 0, 0, 0), 0.3038, 4);
  expect_misprint(look.weights.values(0, 0, 0, 0), 0.517, 3);
  expect_misprint(look.weights.values(0, 0, 1, 0), 0.530, 3);
  expect_misprint(look.output.values(0, 0, 0, 0), 0.244, 3);
  expect_misprint(look.output.values(0, 0, 1, 1), 0.245, 3);
}

// Its own chain is attention with K1^T in the place of K: then the printed figures are right.
TEST(ArticleA5, HeadOneAsTheArticleComputesIt) {
  const SupposedHead head;
  const Tensor4<const double> transposed(head.k.data(), {1, 1, 2, 2}, {0, 0, 1, 2});
  const auto look = inspect_attention(view(head.q), transposed, view(head.v), 0, 0);
  expect_rows("raw", look.raw.values.view(), {{0.3038, 0.2062}, {0.3269, 0.1591}}, 1e-15);
  expect_rows("scaled", look.scaled.values.view(), {{0.215, 0.146}, {0.231, 0.113}}, decimals(3));
  // Printed as 0.112, being divided by 1.414; it is 0.1125007.
  expect_misprint(look.scaled.values(0, 0, 1, 1), 0.112, 3);
  expect_rows("weights", look.weights.values.view(), {{0.517, 0.483}, {0.530, 0.470}}, decimals(3));
  expect_rows("output", look.output.values.view(), {{0.244, 0.243}, {0.243, 0.245}}, decimals(3));
}

// 4. Head 2's output [[0.355, 0.343], [0.343, 0.345]] is supposed too; 5. with it, the output
// projection of token 1 is right, and that of token 2 is misprinted.
TEST(ArticleA5, OutputProjectionOfTheSupposedHeads) {
  const TwoHeads a;
  const ArticleMatrix heads = matrix({{0.244, 0.243, 0.355, 0.343}, {0.243, 0.245, 0.343, 0.345}});
  Tensor4Buffer<double> y({1, 1, 2, 4});
  linear(view(heads), a.all(a.w_o), y);
  expect_rows("output", y.view(),
              {{0.3167, 0.3180, 0.2745, 0.2758}, {0.3142, 0.3138, 0.2742, 0.2738}}, 1e-15);
  // The article: [0.315, 0.317, 0.273, 0.274] ("token 2: likewise"); only the last is right.
  expect_misprint(y(0, 0, 1, 0), 0.315, 3);
  expect_misprint(y(0, 0, 1, 1), 0.317, 3);
  expect_misprint(y(0, 0, 1, 2), 0.273, 3);
  EXPECT_NEAR(y(0, 0, 1, 3), 0.274, decimals(3));
}

// The true result of the whole example, from X and the matrices.
TEST(ArticleA5, TheWholeExample) {
  const TwoHeads a;
  const auto head = [&](Index h) {
    const auto q = a.project(a.head(a.w_q, h)), k = a.project(a.head(a.w_k, h)),
               v = a.project(a.head(a.w_v, h));
    return inspect_attention(q, k, v, 0, 0);
  };
  const auto one = head(0), two = head(1);
  expect_rows("scaled 1", one.scaled.values.view(), {{0.073681, 0.279944}, {0.043770, 0.251659}},
              decimals(6));
  expect_rows("scaled 2", two.scaled.values.view(), {{-0.028496, 0.446609}, {0.033375, 0.179322}},
              decimals(6));
  expect_rows("weights 1", one.weights.values.view(), {{0.448616, 0.551384}, {0.448214, 0.551786}},
              decimals(6));
  expect_rows("weights 2", two.weights.values.view(), {{0.383409, 0.616591}, {0.463578, 0.536422}},
              decimals(6));
  expect_rows("output 1", one.output.values.view(), {{0.096917, 0.270178}, {0.096893, 0.270375}},
              decimals(6));
  expect_rows("output 2", two.output.values.view(), {{0.310516, 0.192691}, {0.327351, 0.218345}},
              decimals(6));

  Tensor4Buffer<double> out({1, 1, 2, 4}), weights({1, 2, 2, 2});
  a.layer().forward(view(a.x), out, no_mask(), {}, {weights.view(), {}});
  expect_rows("MHA", out.view(),
              {{0.233958, 0.228415, 0.206736, 0.201192}, {0.249308, 0.242860, 0.213622, 0.207174}},
              decimals(6));
  EXPECT_TRUE(same_bits(weights.view().slice_heads(0, 1), one.weights.values.view()));
  EXPECT_TRUE(same_bits(weights.view().slice_heads(1, 1), two.weights.values.view()));
}

// A5, A6: a list of one W a head, the heads looped over, is the layer, to the last bit.
TEST(ArticleA5, HeadsInALoopAreTheLayer) {
  const TwoHeads a;
  Tensor4Buffer<double> concatenated({1, 1, 2, 4});
  for (Index h = 0; h < 2; ++h) {
    const auto q = a.project(a.head(a.w_q, h)), k = a.project(a.head(a.w_k, h)),
               v = a.project(a.head(a.w_v, h));
    scaled_dot_product_attention(q, k, v,
                                 bshd(concatenated.data(), {1, 2, 2, 2}).slice_heads(h, 1));
  }
  Tensor4Buffer<double> expected({1, 1, 2, 4}), out({1, 1, 2, 4});
  linear(concatenated, a.all(a.w_o), expected);
  a.layer().forward(view(a.x), out);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

// ---- A6.

TEST(ArticleA6, ShapesOfTheBatchedFunction) {
  const Tensor4Buffer<float> q({2, 8, 10, 64}), k({2, 8, 10, 64}), v({2, 8, 10, 64});
  const auto result = scaled_dot_product_attention(q, k, v, no_mask(), {}, Want::weights);
  EXPECT_EQ(result.output.shape(), (Shape4{2, 8, 10, 64}));
  EXPECT_EQ(result.weights.shape(), (Shape4{2, 8, 10, 10}));
}

// `logits += mask * -1e9` with a float mask, 1 = blocked. Converted, it is drop_where: the same
// weights, but exactly 0 where blocked.
TEST(ArticleA6, AFloatMaskOfOnesIsDropWhere) {
  test::TestTensor<double> q({1, 2, 3, 4}), k({1, 2, 5, 4}), v({1, 2, 5, 4}), mask({1, 1, 3, 5}),
      added({1, 1, 3, 5});
  test::TestTensor<std::uint8_t> dropped({1, 1, 3, 5});
  q.fill_uniform(211);
  k.fill_uniform(212);
  v.fill_uniform(213);
  mask.fill([](Index, Index, Index i, Index j) { return (i + 2 * j) % 3 == 0 ? 1.0 : 0.0; });
  added.fill([&](Index b, Index h, Index i, Index j) { return mask(b, h, i, j) * -1e9; });
  dropped.fill([&](Index b, Index h, Index i, Index j) { return mask(b, h, i, j) != 0; });

  const auto ours = scaled_dot_product_attention(q.view(), k.view(), v.view(),
                                                 drop_where(dropped.view()), {}, Want::weights);
  const auto article = scaled_dot_product_attention(q.view(), k.view(), v.view(),
                                                    add_bias(added.view()), {}, Want::weights);
  test::for_each_index(ours.weights.shape(), [&](Index b, Index h, Index i, Index j) {
    if (mask(0, 0, i, j) != 0) {
      EXPECT_TRUE(same_bits(ours.weights(b, h, i, j), 0.0));
    }
    EXPECT_NEAR(ours.weights(b, h, i, j), article.weights(b, h, i, j), 1e-15);
  });
}

// Head i uses group i / group_size, with num_heads / group_size groups: neighbours share.
TEST(ArticleA6, ConsecutiveQueryHeadsShareAGroup) {
  constexpr Index kHeads = 6, kGroupSize = 3;
  test::TestTensor<float> q({1, kHeads, 4, 5}), k({1, kHeads / kGroupSize, 7, 5}),
      v({1, kHeads / kGroupSize, 7, 5}), out({1, kHeads, 4, 5});
  q.fill_uniform(221);
  k.fill_uniform(222);
  v.fill_uniform(223);
  scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view());
  for (Index i = 0; i < kHeads; ++i) {
    const Index group = i / kGroupSize;
    test::TestTensor<float> head({1, 1, 4, 5});
    scaled_dot_product_attention(q.view().slice_heads(i, 1), k.view().slice_heads(group, 1),
                                 v.view().slice_heads(group, 1), head.view());
    // A group of one head may be computed in another form than a group of three. Scores lie within
    // 5 / sqrt(5), values within 1; each side is within (6 + 3 |score|) epsilon.
    const float tolerance = 2 * (6 + 3 * std::sqrt(5.0f)) * 0x1p-23f;
    test::for_each_index(head.shape(), [&](Index b, Index h, Index r, Index d) {
      EXPECT_NEAR(out(b, i, r, d), head(b, h, r, d), tolerance) << i;
    });
  }
}

}  // namespace
}  // namespace attn

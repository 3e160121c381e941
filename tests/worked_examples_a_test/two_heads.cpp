// Article A, number by number: two heads by hand, and the batched function. How figures are
// asserted is said in one_query.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "attn/attn.hpp"
#include "support/articles.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::ArticleMatrix;
using test::decimals;
using test::expect_misprint;
using test::expect_rows;
using test::matrix;
using test::same_bits;

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

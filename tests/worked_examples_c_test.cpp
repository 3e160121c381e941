// Article C, claim by claim: naive and batched functions, masks, broadcasting, dropout, tiling. Its
// debugging walk (part 6) is held to inspect_attention in inspect_test.cpp.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "support/allocations.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using test::same_bits;
using test::TestTensor;

/// q, k and v with seeded entries.
struct Tensors {
  TestTensor<float> q, k, v;

  Tensors(const Shape4& q_shape, const Shape4& k_shape, const Shape4& v_shape)
      : q(q_shape), k(k_shape), v(v_shape) {
    q.fill_uniform(251, 2);
    k.fill_uniform(252, 2);
    v.fill_uniform(253, 2);
  }
  template <class M = NoMask>
  AttentionResult<float, float> attend(const M& mask = M(),
                                       const AttentionOptions& options = {}) const {
    return scaled_dot_product_attention(q.view(), k.view(), v.view(), mask, options, Want::weights);
  }
};

// 2.2 prints softmax's derivative as p_i (1 - p_j) for i = j and -p_i p_j otherwise. It is
// p_i (1 - p_i) and -p_i p_j, as central differences show.
TEST(ArticleC2, DerivativeOfSoftmax) {
  const std::vector<double> scores = {0.3, -0.7, 1.1, 0.2};
  const auto softmax = [](const std::vector<double>& s) {
    const double one = 1;
    const Tensor4<const double> k(s.data(), {1, 1, 4, 1}), q(&one, {1, 1, 1, 1});
    AttentionOptions options;
    options.scale = 1;
    return scaled_dot_product_attention(q, k, k, no_mask(), options, Want::weights).weights;
  };
  const Tensor4Buffer<double> p = softmax(scores);
  const double step = 1e-6;
  for (Index j = 0; j < 4; ++j) {
    std::vector<double> up = scores, down = scores;
    up[static_cast<std::size_t>(j)] += step;
    down[static_cast<std::size_t>(j)] -= step;
    const Tensor4Buffer<double> p_up = softmax(up), p_down = softmax(down);
    for (Index i = 0; i < 4; ++i) {
      const double difference = (p_up(0, 0, 0, i) - p_down(0, 0, 0, i)) / (2 * step);
      const double p_i = p(0, 0, 0, i), p_j = p(0, 0, 0, j);
      // Rounding of about 1e-16 / 1e-6, and a third derivative times 1e-12.
      EXPECT_NEAR(difference, i == j ? p_i * (1 - p_i) : -p_i * p_j, 1e-9) << i << ", " << j;
    }
  }
}

TEST(ArticleC3, ShapesAndSumsOfTheNaiveFunction) {
  const Tensors t({1, 1, 3, 8}, {1, 1, 4, 8}, {1, 1, 4, 6});
  const auto result = t.attend();
  EXPECT_EQ(result.output.shape(), (Shape4{1, 1, 3, 6}));
  EXPECT_EQ(result.weights.shape(), (Shape4{1, 1, 3, 4}));
  for (Index i = 0; i < 3; ++i) {
    // Four weights, each rounded, and their sum.
    EXPECT_NEAR(result.weights.view().matrix(0, 0).row(i).sum(), 1, 4 * 0x1p-23);
  }
}

// 4.1: inputs of rank 2, 3 and 4 are views of one function.
TEST(ArticleC4, InputsOfRankTwoThreeAndFour) {
  const Tensors t({2, 3, 4, 8}, {2, 3, 5, 8}, {2, 3, 5, 6});  // (batch, heads, length, dim)
  const auto all = t.attend();
  for (Index b = 0; b < 2; ++b) {
    // (batch x heads) as one leading axis of rank 3, with attn::hsd and attn::bsd.
    const auto hsd_of = [b](const TestTensor<float>& x) {
      const Shape4& s = x.shape();
      return hsd(x.view().data() + b * s.heads * s.length * s.dim, s.heads, s.length, s.dim);
    };
    const auto bsd_of = [b](const TestTensor<float>& x) {
      const Shape4& s = x.shape();
      return bsd(x.view().data() + b * s.heads * s.length * s.dim, s.heads, s.length, s.dim);
    };
    const auto by_heads = scaled_dot_product_attention(hsd_of(t.q), hsd_of(t.k), hsd_of(t.v));
    const auto by_batch = scaled_dot_product_attention(bsd_of(t.q), bsd_of(t.k), bsd_of(t.v));
    EXPECT_TRUE(same_bits(by_heads.output.view(), all.output.view().slice_batch(b, 1)));
    for (Index h = 0; h < 3; ++h) {
      const auto expected = all.output.view().slice_batch(b, 1).slice_heads(h, 1);
      EXPECT_TRUE(same_bits(by_batch.output.view().slice_batch(h, 1), expected));
      // Rank 2: a matrix.
      Eigen::MatrixXf q = t.q.view().matrix(b, h), k = t.k.view().matrix(b, h),
                      v = t.v.view().matrix(b, h);
      const auto one = scaled_dot_product_attention(view(q), view(k), view(v));
      EXPECT_TRUE(same_bits(one.output.view(), expected));
    }
  }
}

// 4.2: in this article True = blocked, as in A: drop_where. In PyTorch's own function (5.2, where
// the article has it the wrong way round) True = may attend: keep_where. The names tell.
TEST(ArticleC4, TrueIsBlocked) {
  const Tensors t({1, 1, 2, 4}, {1, 1, 3, 4}, {1, 1, 3, 4});
  TestTensor<bool> blocked({1, 1, 1, 3}), allowed({1, 1, 1, 3});
  blocked.fill([](Index, Index, Index, Index j) { return j == 2; });
  allowed.fill([](Index, Index, Index, Index j) { return j != 2; });
  const auto dropped = t.attend(drop_where(blocked.view()));
  const auto kept = t.attend(keep_where(allowed.view()));
  for (Index i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(dropped.weights(0, 0, i, 2), 0.0f));
    EXPECT_GT(dropped.weights(0, 0, i, 0), 0);
  }
  EXPECT_TRUE(same_bits(dropped.output.view(), kept.output.view()));
}

// Scenario 1: batch of 2, three queries, five keys; sample 1 pads its last key, sample 2 its last
// two. The article adds a (2, 1, 1, 5) mask to (2, 3, 5) scores, which broadcasts to (2, 2, 3, 5):
// its printed (2, 3, 6) is not what its code gives. Tensors of rank 4 leave no such choice.
TEST(ArticleC4, PaddingMask) {
  const Tensors t({2, 1, 3, 4}, {2, 1, 5, 4}, {2, 1, 5, 6});
  TestTensor<bool> padding({2, 1, 1, 5}), materialized({2, 1, 3, 5});
  const auto is_padding = [](Index b, Index, Index, Index j) { return j >= (b == 0 ? 4 : 3); };
  padding.fill(is_padding);
  materialized.fill(is_padding);
  const std::vector<Index> lengths = {4, 3};

  const auto by_length = t.attend(key_lengths(lengths));
  EXPECT_EQ(by_length.output.shape(), (Shape4{2, 1, 3, 6}));
  EXPECT_EQ(by_length.weights.shape(), (Shape4{2, 1, 3, 5}));
  test::for_each_index(by_length.weights.shape(), [&](Index b, Index h, Index i, Index j) {
    const float weight = by_length.weights(b, h, i, j);
    if (is_padding(b, h, i, j)) {
      EXPECT_TRUE(same_bits(weight, 0.0f));
    } else {
      EXPECT_GT(weight, 0);
    }
  });
  for (const auto& other :
       {t.attend(drop_where(padding.view())), t.attend(drop_where(materialized.view()))}) {
    EXPECT_TRUE(same_bits(other.output.view(), by_length.output.view()));
    EXPECT_TRUE(same_bits(other.weights.view(), by_length.weights.view()));
  }
}

// Scenario 2: causal, five tokens of dim 8: query 2 sees keys 0 to 2 alone.
TEST(ArticleC4, CausalMask) {
  const Tensors t({1, 1, 5, 8}, {1, 1, 5, 8}, {1, 1, 5, 8});
  TestTensor<bool> upper({1, 1, 5, 5});
  upper.fill([](Index, Index, Index i, Index j) { return j > i; });
  const auto result = t.attend(causal()), materialized = t.attend(drop_where(upper.view()));
  for (Index i = 0; i < 5; ++i) {
    for (Index j = 0; j < 5; ++j) {
      const float weight = result.weights(0, 0, i, j);
      if (j > i) {
        EXPECT_TRUE(same_bits(weight, 0.0f));
      } else {
        EXPECT_GT(weight, 0);
      }
    }
  }
  EXPECT_TRUE(same_bits(result.output.view(), materialized.output.view()));
  EXPECT_TRUE(same_bits(result.weights.view(), materialized.weights.view()));
}

// All three articles write -1e9 for "blocked". Then a row whose keys are all blocked is the plain
// mean of V; here it is zero, in weights and output, and never NaN.
TEST(ArticleC4, AFullyBlockedRow) {
  const Tensors t({1, 1, 2, 4}, {1, 1, 3, 4}, {1, 1, 3, 4});
  TestTensor<bool> blocked({1, 1, 2, 3});
  TestTensor<float> added({1, 1, 2, 3});
  blocked.fill([](Index, Index, Index i, Index) { return i == 1; });
  added.fill([](Index, Index, Index i, Index) { return i == 1 ? -1e9f : 0.0f; });

  // A finite bias is a bias: scores of -1e9 and all alike, so the mean (of numbers within 2: four
  // roundings).
  const auto article = t.attend(add_bias(added.view()));
  const auto ours = t.attend(drop_where(blocked.view()));
  for (Index d = 0; d < 4; ++d) {
    const float mean = (t.v(0, 0, 0, d) + t.v(0, 0, 1, d) + t.v(0, 0, 2, d)) / 3;
    EXPECT_NEAR(article.output(0, 0, 1, d), mean, 4 * 0x1p-23f);
    EXPECT_TRUE(same_bits(ours.output(0, 0, 1, d), 0.0f));
  }
  for (Index j = 0; j < 3; ++j) {
    EXPECT_TRUE(same_bits(ours.weights(0, 0, 1, j), 0.0f));
    EXPECT_NEAR(ours.weights(0, 0, 0, j), article.weights(0, 0, 0, j), 4 * 0x1p-23f);
  }
  // In half precision -1e9 is -infinity, with which the article's softmax is NaN. A bias of
  // -infinity is a dropped key.
  TestTensor<Eigen::half> narrow({1, 1, 2, 3});
  narrow.fill([&](Index b, Index h, Index i, Index j) { return added(b, h, i, j); });
  EXPECT_EQ(static_cast<float>(narrow(0, 0, 1, 0)), -test::infinity<float>());
  EXPECT_TRUE(same_bits(t.attend(add_bias(narrow.view())).output(0, 0, 1, 0), 0.0f));
}

// 5.1: a module with dropout on the weights: in training it drops and scales up, in evaluation it
// is not there.
TEST(ArticleC5, DropoutOfTheModule) {
  const Tensors t({1, 2, 40, 8}, {1, 2, 50, 8}, {1, 2, 50, 8});
  AttentionOptions training;
  training.dropout = {0.1, 7, 0};
  const auto evaluation = t.attend(), trained = t.attend(no_mask(), training);
  Index dropped = 0;
  test::for_each_index(evaluation.weights.shape(), [&](Index b, Index h, Index i, Index j) {
    const float weight = trained.weights(b, h, i, j);
    if (weight == 0) {
      ++dropped;
    } else {
      EXPECT_NEAR(weight, evaluation.weights(b, h, i, j) / 0.9f,
                  2 * 0x1p-23f * evaluation.weights(b, h, i, j));
    }
  });
  // 4000 weights at p = 0.1: a deviation of 19.
  EXPECT_NEAR(static_cast<double>(dropped), 400, 5 * 19.0);
}

// 5.2 asks PyTorch's function for weights by `return_attn_probs=True`, which it does not have. Here
// they are asked for by Want::weights, which changes no bit of the output.
TEST(ArticleC5, AskingForTheWeightsChangesNothing) {
  const Tensors t({1, 2, 40, 8}, {1, 2, 50, 8}, {1, 2, 50, 8});
  const auto without = scaled_dot_product_attention(t.q.view(), t.k.view(), t.v.view());
  EXPECT_TRUE(without.weights.empty());
  EXPECT_TRUE(same_bits(without.output.view(), t.attend().output.view()));
}

// 5.2: the S x S matrix is the cost of long sequences, and tiling avoids it: 1 GiB of weights at
// S = 16384, of which a call takes less than 2 MiB of scratch.
TEST(ArticleC5, TilesInThePlaceOfTheMatrix) {
  constexpr Index kLength = 16384, kDim = 4;
  Tensor4Buffer<float> x({1, 1, kLength, kDim}), out({1, 1, kLength, kDim});
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] = static_cast<float>(test::uniform(271, static_cast<std::uint64_t>(i)));
  }
  const std::size_t matrix_bytes = std::size_t{kLength} * kLength * sizeof(float);
  test::allocations().reset();
  scaled_dot_product_attention(x, x, x, out, causal());
  EXPECT_LT(test::allocations().bytes, std::size_t{2} << 20);
  EXPECT_LT(500 * test::allocations().bytes, matrix_bytes);

  // Each thread has scratch of its own, and nothing else grows.
  const std::size_t one = test::allocations().bytes;
  ThreadPool pool(2);
  AttentionOptions options;
  options.executor = &pool;
  TestTensor<float> again(out.shape());
  test::allocations().reset();
  scaled_dot_product_attention(x, x, x, again.view(), causal(), options);
  EXPECT_LE(test::allocations().bytes, 2 * one);
  EXPECT_TRUE(same_bits(again.view(), out.view()));
}

}  // namespace
}  // namespace attn

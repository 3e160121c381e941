// The form that returns its results, and what arguments may be.
#include <gtest/gtest.h>

#include <type_traits>

#include "attention_test/distinct.hpp"
#include "attn/attention.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::half;
using test::Inputs;
using test::TestTensor;

TEST(ReturningForm, GivesWhatIsWanted) {
  const Inputs<half> in(kDistinct, 51);
  TestTensor<half> out(kDistinct.out());
  TestTensor<float> weights(kDistinct.scores()), log_sum_exp(kDistinct.rows());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), no_mask(), {},
                               {weights.view(), log_sum_exp.view()});

  const auto plain = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view());
  static_assert(std::is_same_v<decltype(plain), const AttentionResult<half, float>>);
  EXPECT_TRUE(test::same_bits(plain.output.view(), out.view()));
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_TRUE(plain.log_sum_exp.empty());

  const auto all = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), no_mask(),
                                                {}, Want::weights | Want::log_sum_exp);
  EXPECT_TRUE(test::same_bits(all.output.view(), out.view()));
  EXPECT_TRUE(test::same_bits(all.weights.view(), weights.view()));
  EXPECT_TRUE(test::same_bits(all.log_sum_exp.view(), log_sum_exp.view()));

  const auto some = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), no_mask(),
                                                 {}, Want::log_sum_exp);
  EXPECT_TRUE(some.weights.empty());
  EXPECT_TRUE(test::same_bits(some.log_sum_exp.view(), log_sum_exp.view()));
}

TEST(ReturningForm, TheOutputHasTheTypeOfQ) {
  const Inputs<float, half, double> in(kDistinct, 52);
  const auto result = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(),
                                                   causal_top_left(), {}, Want::weights);
  static_assert(std::is_same_v<decltype(result), const AttentionResult<float, double>>);
  EXPECT_EQ(result.weights.shape(), kDistinct.scores());
}

TEST(Arguments, BuffersAndMatricesAreTensors) {
  Eigen::MatrixXf q = Eigen::MatrixXf::Random(3, 4), k = Eigen::MatrixXf::Random(5, 4),
                  v = Eigen::MatrixXf::Random(5, 2), out(3, 2);
  scaled_dot_product_attention(view(q), view(k), view(v), view(out));
  Eigen::MatrixXd weights =
      (q.cast<double>() * k.cast<double>().transpose() / 2).array().exp().matrix();
  for (Index i = 0; i < 3; ++i) weights.row(i) /= weights.row(i).sum();
  EXPECT_TRUE(out.isApprox((weights * v.cast<double>()).cast<float>(), 1e-5f));
}

}  // namespace
}  // namespace attn

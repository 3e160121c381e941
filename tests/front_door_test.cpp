// What the public functions take as tensors and as extra outputs: the same in all of them.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cstring>
#include <string>

#include "attn/kv_cache.hpp"
#include "attn/merge.hpp"
#include "attn/ragged.hpp"
#include "attn/reference.hpp"

namespace attn {
namespace {

template <class A, class B>
bool same_bits(const Tensor4<A>& a, const Tensor4<B>& b) {
  if (a.shape() != b.shape()) return false;
  for (Index i = 0; i < a.shape().batch; ++i) {
    for (Index h = 0; h < a.shape().heads; ++h) {
      for (Index row = 0; row < a.shape().length; ++row) {
        for (Index d = 0; d < a.shape().dim; ++d) {
          if (std::memcmp(&a(i, h, row, d), &b(i, h, row, d), sizeof(A)) != 0) return false;
        }
      }
    }
  }
  return true;
}

class EigenArguments : public ::testing::Test {
 protected:
  // Matrices of each storage order, and a block of a wider one.
  Eigen::MatrixXf q = Eigen::MatrixXf::Random(7, 8);
  Eigen::Matrix<float, 7, 8, Eigen::RowMajor> k = Eigen::MatrixXf::Random(7, 8);
  Eigen::ArrayXXf wide = Eigen::ArrayXXf::Random(7, 20);
  Eigen::MatrixXf expected = Eigen::MatrixXf(7, 5);

  void SetUp() override {
    scaled_dot_product_attention(view(q), view(k), view(wide.leftCols(5)), view(expected),
                                 causal());
  }
};

TEST_F(EigenArguments, AreOneHead) {
  Eigen::MatrixXf out(7, 5);
  scaled_dot_product_attention(q, k, wide.leftCols(5), out, causal());
  EXPECT_EQ(out, expected);

  Eigen::MatrixXf wider(7, 9);
  scaled_dot_product_attention(q, k, wide.leftCols(5), wider.middleCols(2, 5), causal());
  EXPECT_EQ(wider.middleCols(2, 5), expected);
}

TEST_F(EigenArguments, ServeAsInputsWhereTheyAreTemporaries) {
  Eigen::MatrixXf out(7, 5);
  scaled_dot_product_attention((2 * q).eval(), (0.5f * k).eval(), wide.leftCols(5), out, causal());
  EXPECT_EQ(out, expected);  // powers of two round nothing
}

TEST_F(EigenArguments, ServeTheFormThatReturnsItsResults) {
  const auto result = scaled_dot_product_attention(q, k, wide.leftCols(5), causal(), {},
                                                   Want::weights | Want::log_sum_exp);
  EXPECT_TRUE(same_bits(result.output.view(), view(std::as_const(expected))));
  EXPECT_EQ(result.weights.shape(), (Shape4{1, 1, 7, 7}));
  EXPECT_EQ(result.log_sum_exp.shape(), (Shape4{1, 1, 7, 1}));
}

TEST_F(EigenArguments, ServeCachesAndMerges) {
  KeyValueCache<float> cache(1, 1, 7, 8, 5);
  cache.append(k, wide.leftCols(5));
  cache.reset();
  cache.append_to(0, k, wide.leftCols(5));
  Eigen::MatrixXf out(7, 5);
  scaled_dot_product_attention(q, cache, out, causal());
  EXPECT_EQ(out, expected);
  EXPECT_EQ(attention_workspace_bytes(q, cache), attention_workspace_bytes(view(q), cache));

  // Merging with a part that has no keys changes nothing.
  const Eigen::VectorXf sums = Eigen::VectorXf::Zero(7);
  const Eigen::VectorXf none = Eigen::VectorXf::Constant(7, -HUGE_VALF);
  Eigen::MatrixXf merged(7, 5);
  Eigen::VectorXf sum(7);
  merge_attention(expected, sums, out, none, merged, sum);
  EXPECT_EQ(merged, expected);
}

TEST_F(EigenArguments, ServeAsMasks) {
  Eigen::MatrixXf bias = Eigen::MatrixXf::Random(7, 7);
  const Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> keep =
      bias.array() < 0.5f;
  const Eigen::Array<bool, 1, Eigen::Dynamic> drop = bias.row(2).array() > 0.0f;
  const auto values = wide.leftCols(5);
  Eigen::MatrixXf out(7, 5), other(7, 5);
  scaled_dot_product_attention(q, k, values, out,
                               add_bias(bias) & keep_where(keep) & drop_where(drop));
  scaled_dot_product_attention(
      q, k, values, other,
      modify_score([&](auto score, ScorePosition at) { return score + bias(at.query, at.key); }) &
          keep_if([&](ScorePosition at) { return keep(at.query, at.key) && !drop(at.key); }));
  EXPECT_EQ(out, other);
}

TEST_F(EigenArguments, ServeTheReference) {
  const auto all = [](Index, Index, Index i, Index j) { return j <= i; };
  const auto same = [](double score, Index, Index, Index, Index) { return score; };
  Eigen::MatrixXf out(7, 5);
  reference_attention(q, k, wide.leftCols(5), out, all, same);
  EXPECT_TRUE(out.isApprox(expected, 1e-5f));

  Tensor4Buffer<float> q_buffer(Shape4{1, 1, 7, 8}), out_buffer(Shape4{1, 1, 7, 5});
  q_buffer.view().matrix(0, 0) = q;
  const Tensor4Buffer<float> constant = q_buffer;
  reference_attention(constant, k, wide.leftCols(5), out_buffer, all, same);
  EXPECT_EQ(out_buffer.view().matrix(0, 0), out);
}

TEST(FrontDoor, RaggedCallsTakeExtraOutputs) {
  Tensor4Buffer<float> x(Shape4{1, 2, 5, 4}), out(Shape4{1, 2, 5, 4});
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 7) / 8;
  const Index starts[] = {0, 2, 5};
  Tensor4Buffer<float> alone(Shape4{1, 2, 5, 1}), named(Shape4{1, 2, 5, 1});
  ragged_attention(x, x, x, out, starts, no_mask(), {}, alone.view());
  AttentionOutputs<float> extra;
  extra.log_sum_exp = named.view();
  ragged_attention(x, x, x, out, starts, no_mask(), {}, extra);
  EXPECT_TRUE(same_bits(alone.view(), named.view()));
  const auto last =
      scaled_dot_product_attention(x.view().slice_length(2, 3), x.view().slice_length(2, 3),
                                   x.view().slice_length(2, 3), no_mask(), {}, Want::log_sum_exp);
  EXPECT_TRUE(same_bits(named.view().slice_length(2, 3), last.log_sum_exp.view()));

  KeyValueCache<float> cache(2, 2, 4, 4);
  cache.append_to(0, x.view().slice_length(0, 2), x.view().slice_length(0, 2));
  cache.append_to(1, x.view().slice_length(2, 3), x.view().slice_length(2, 3));
  Tensor4Buffer<float> cached(Shape4{1, 2, 5, 1});
  extra.log_sum_exp = cached.view();
  ragged_attention(x, cache, out, starts, no_mask(), {}, extra);
  EXPECT_TRUE(same_bits(cached.view(), named.view()));
}

TEST(FrontDoor, RaggedCallsRefuseWeights) {
  Tensor4Buffer<float> x(Shape4{1, 2, 5, 4}), out(Shape4{1, 2, 5, 4}), weights(Shape4{1, 2, 5, 5});
  const Index starts[] = {0, 2, 5};
  AttentionOutputs<float> extra;
  extra.weights = weights.view();
  try {
    ragged_attention(x, x, x, out, starts, no_mask(), {}, extra);
    ADD_FAILURE() << "no error";
  } catch (const OptionError& error) {
    EXPECT_EQ(std::string(error.what()),
              "ragged_attention: extra.weights must not be set: sequences of different lengths "
              "have no common tensor of weights; got q [1, 2, 5, 4], k [1, 2, 5, 4], "
              "v [1, 2, 5, 4]");
  }
}

}  // namespace
}  // namespace attn

// Where the elements of a view lie: the helpers whose order is their name's, and matrices of
// tokens.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace {

constexpr Index kBatch = 2, kHeads = 3, kLength = 4, kDim = 5;

template <class F>
void for_each_place(const F& f) {
  for (Index b = 0; b < kBatch; ++b) {
    for (Index h = 0; h < kHeads; ++h) {
      for (Index i = 0; i < kLength; ++i) {
        for (Index d = 0; d < kDim; ++d) f(b, h, i, d);
      }
    }
  }
}

TEST(Layouts, ExtentsStandInTheOrderOfTheName) {
  float data[kBatch * kHeads * kLength * kDim] = {};
  const Shape4 shape{kBatch, kHeads, kLength, kDim};
  const Tensor4<float> by_head = bhsd(data, kBatch, kHeads, kLength, kDim);
  const Tensor4<float> by_token = bshd(data, kBatch, kLength, kHeads, kDim);
  EXPECT_EQ(by_head.shape(), shape);
  EXPECT_EQ(by_token.shape(), shape);
  EXPECT_EQ(by_head.stride(), bhsd(data, shape).stride());
  EXPECT_EQ(by_token.stride(), bshd(data, shape).stride());
  for_each_place([&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(&by_head(b, h, i, d), data + ((b * kHeads + h) * kLength + i) * kDim + d);
    EXPECT_EQ(&by_token(b, h, i, d), data + ((b * kLength + i) * kHeads + h) * kDim + d);
  });
}

// A (B * S) x (H * D) matrix, as a linear layer makes it of a batch.
template <int kOrder>
void expect_view_of_batches() {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, kOrder> matrix(kBatch * kLength,
                                                                      kHeads * kDim);
  const Tensor4<float> tokens = view(matrix, kHeads, kBatch);
  EXPECT_EQ(tokens.shape(), (Shape4{kBatch, kHeads, kLength, kDim}));
  for_each_place([&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(&tokens(b, h, i, d), &matrix(b * kLength + i, h * kDim + d));
  });
  const auto& constant = matrix;
  const Tensor4<const float> middle =
      view(constant.block(kLength, kDim, kLength, 2 * kDim), 2, kLength);
  EXPECT_EQ(middle.shape(), (Shape4{kLength, 2, 1, kDim}));
  EXPECT_EQ(&middle(2, 1, 0, 3), &matrix(kLength + 2, 2 * kDim + 3));
}

TEST(Layouts, AMatrixHoldsTheTokensOfABatch) {
  expect_view_of_batches<Eigen::ColMajor>();
  expect_view_of_batches<Eigen::RowMajor>();
}

TEST(Layouts, AMatrixOfABatchIsAttendedTo) {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(kBatch * kLength, kHeads * kDim);
  Eigen::MatrixXf together(kBatch * kLength, kHeads * kDim), apart(together);
  const auto tokens = view(x, kHeads, kBatch);
  scaled_dot_product_attention(tokens, tokens, tokens, view(together, kHeads, kBatch), causal());
  for (Index b = 0; b < kBatch; ++b) {
    const auto rows = view(x.middleRows(b * kLength, kLength), kHeads);
    scaled_dot_product_attention(rows, rows, rows,
                                 view(apart.middleRows(b * kLength, kLength), kHeads), causal());
  }
  EXPECT_EQ(together, apart);
}

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Layouts, ViewsNameWhatDoesNotDivide) {
  Eigen::MatrixXf matrix(6, 8);
  EXPECT_EQ(message_of([&] { view(matrix, 3, 2); }),
            "view: num_heads 3 does not divide the columns of the matrix (6 x 8)");
  EXPECT_EQ(message_of([&] { view(matrix, 2, 4); }),
            "view: batch 4 does not divide the rows of the matrix (6 x 8)");
  EXPECT_EQ(message_of([&] { view(matrix, 2, 0); }),
            "view: batch 0 does not divide the rows of the matrix (6 x 8)");
}

}  // namespace
}  // namespace attn

// tests/support/articles.hpp - small matrices, as articles print them.
#pragma once

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <initializer_list>

#include "attn/tensor.hpp"

namespace attn {
namespace test {

using Rows = std::initializer_list<std::initializer_list<double>>;

/// A row-major matrix from its rows.
using ArticleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
inline ArticleMatrix matrix(const Rows& rows) {
  ArticleMatrix result(static_cast<Eigen::Index>(rows.size()),
                       static_cast<Eigen::Index>(rows.begin()->size()));
  Eigen::Index i = 0;
  for (const auto& row : rows) {
    Eigen::Index j = 0;
    for (const double x : row) result(i, j++) = x;
    ++i;
  }
  return result;
}

/// Half a unit of the last of this many decimals: what rounding to them may change.
inline double decimals(int count) { return 0.5000001 * std::pow(10.0, -count); }

/// Holds one (batch, head) of a tensor to printed rows.
template <class T>
void expect_rows(const char* what, const Tensor4<T>& tensor, const Rows& rows, double tolerance,
                 Index batch = 0, Index head = 0) {
  ASSERT_EQ(tensor.length(), static_cast<Index>(rows.size())) << what;
  Index i = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(tensor.dim(), static_cast<Index>(row.size())) << what;
    Index d = 0;
    for (const double expected : row) {
      EXPECT_NEAR(static_cast<double>(tensor(batch, head, i, d)), expected, tolerance)
          << what << " (" << i << ", " << d << ")";
      ++d;
    }
    ++i;
  }
}

/// The article's figure is not what its own inputs give: off by more than `decimals(count)`.
inline void expect_misprint(double truth, double printed, int count) {
  EXPECT_GT(std::abs(truth - printed), decimals(count)) << "the article is right after all";
}

}  // namespace test
}  // namespace attn

// error: attn::view of a temporary Matrix would dangle: give the matrix a name first
#include <Eigen/Core>

#include "attn/tensor.hpp"

Eigen::MatrixXf make() { return Eigen::MatrixXf::Zero(2, 3); }

int main() {
#ifdef ATTN_EXPECT_ERROR
  return attn::view(make()).heads() == 1;
#else
  const Eigen::MatrixXf matrix = make();
  return attn::view(matrix).heads() == 1;
#endif
}

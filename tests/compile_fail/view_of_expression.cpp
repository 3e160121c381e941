// error: attn::view takes an Eigen expression with direct access to memory
#include <Eigen/Core>

#include "attn/tensor.hpp"

int main() {
  const Eigen::MatrixXf matrix = Eigen::MatrixXf::Zero(2, 3);
#ifdef ATTN_EXPECT_ERROR
  const auto expression = matrix + matrix;
#else
  const auto expression = matrix.block(0, 0, 1, 2);
#endif
  return attn::view(expression).heads() == 1;
}

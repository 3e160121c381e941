// error: attn::view takes an Eigen Matrix, Array, Map, Ref or Block
#include <Eigen/Core>

#include "attn/tensor.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  float matrix[6] = {};
#else
  Eigen::ArrayXXf matrix(2, 3);
#endif
  return attn::view(matrix).heads() == 1;
}

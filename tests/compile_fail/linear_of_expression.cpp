// error: attn: this Eigen expression has no elements in memory yet: evaluate it into a Matrix first
#include "attn/layers/linear.hpp"

int main() {
  Eigen::MatrixXf x(2, 3);
  const float weight[12] = {};
  attn::Tensor4Buffer<float> out({1, 1, 2, 4});
  const attn::LinearWeights<float> weights{attn::bhsd(weight, {1, 1, 4, 3})};
#ifdef ATTN_EXPECT_ERROR
  attn::linear(x + x, weights, out);
#else
  attn::linear(x, weights, out);
#endif
}

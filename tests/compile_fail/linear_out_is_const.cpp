// error: attn: out is written to: its element type must not be const
#include "attn/layers/linear.hpp"

int main() {
  const attn::Tensor4Buffer<float> x({1, 1, 2, 3});
  const float weight[12] = {};
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<float> out({1, 1, 2, 4});
#else
  attn::Tensor4Buffer<float> out({1, 1, 2, 4});
#endif
  attn::linear(x, attn::LinearWeights<float>{attn::bhsd(weight, {1, 1, 4, 3})}, out);
}

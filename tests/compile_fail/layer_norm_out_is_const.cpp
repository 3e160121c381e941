// error: attn: out is written to: its element type must not be const
#include "attn/layers/layer_norm.hpp"

int main() {
  const attn::Tensor4Buffer<float> x({1, 1, 2, 3});
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<float> out({1, 1, 2, 3});
#else
  attn::Tensor4Buffer<float> out({1, 1, 2, 3});
#endif
  attn::layer_norm(x, attn::LayerNormWeights<float>{}, out);
}

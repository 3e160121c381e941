// error: attn: out of a layer must have the element type of its weights
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
#ifdef ATTN_EXPECT_ERROR
  attn::Tensor4Buffer<double> out({1, 1, 2, 8});
#else
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
#endif
  layer.forward(x, out);
}

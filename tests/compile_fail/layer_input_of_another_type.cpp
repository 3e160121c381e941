// error: attn: the inputs of a layer must have the element type of its weights
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<double> x({1, 1, 2, 8});
#else
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
#endif
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
  layer.forward(x, out);
}

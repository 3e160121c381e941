// error: attn: out is written to: its element type must not be const
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<float> out({1, 1, 2, 8});
#else
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
#endif
  layer.forward(x, out);
}

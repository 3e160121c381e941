// error: attn: the extra outputs of a call without a tensor of double are
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
#ifdef ATTN_EXPECT_ERROR
  attn::AttentionOutputs<double> extra;
#else
  attn::AttentionOutputs<float> extra;
#endif
  layer.forward(x, out, attn::no_mask(), {}, extra);
}

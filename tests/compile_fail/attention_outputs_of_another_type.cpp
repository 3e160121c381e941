// error: attn: the extra outputs of a call without a tensor of double are
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::AttentionOutputs<double> extra;
#else
  attn::AttentionOutputs<float> extra;
#endif
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor, attn::no_mask(), {}, extra);
}

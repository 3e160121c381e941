// error: attn: options come behind the mask: give attn::no_mask() in front of them
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  attn::AttentionOptions options;
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(tensor, tensor, tensor, options);
#else
  attn::scaled_dot_product_attention(tensor, tensor, tensor, attn::no_mask(), options);
#endif
}

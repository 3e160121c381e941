// error: attn: masks are combined with &, not with &&
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor,
                                     attn::causal() && attn::sliding_window(1, 0));
#else
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor,
                                     attn::causal() & attn::sliding_window(1, 0));
#endif
}

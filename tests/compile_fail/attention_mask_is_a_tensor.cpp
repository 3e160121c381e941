// error: attn: argument 5 must be a mask of attn/mask.hpp
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(read_only, read_only, read_only, tensor, read_only);
#else
  attn::scaled_dot_product_attention(read_only, read_only, read_only, tensor,
                                     attn::add_bias(read_only));
#endif
}

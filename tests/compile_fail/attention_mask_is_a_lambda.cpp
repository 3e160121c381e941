// error: attn: argument 5 must be a mask of attn/mask.hpp; wrap a lambda in keep_if
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(read_only, read_only, read_only, tensor,
                                     [](attn::ScorePosition at) { return at.key == 0; });
#else
  attn::scaled_dot_product_attention(
      read_only, read_only, read_only, tensor,
      attn::drop_if([](attn::ScorePosition at) { return at.key == 0; }));
#endif
}

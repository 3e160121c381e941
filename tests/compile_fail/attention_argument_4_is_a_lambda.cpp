// error: attn: behind the inputs comes the output (an attn::Tensor4 view) or a mask
#include "attn/attention.hpp"

int main() {
  const float constant[4] = {};
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(read_only, read_only, read_only,
                                     [](attn::ScorePosition at) { return at.key == 0; });
#else
  attn::scaled_dot_product_attention(
      read_only, read_only, read_only,
      attn::keep_if([](attn::ScorePosition at) { return at.key == 0; }));
#endif
}

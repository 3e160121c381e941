// error: attn: the sides of a union (|) only keep or drop keys
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const auto twice =
      attn::modify_score([](auto score, attn::ScorePosition) { return score + score; });
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor,
                                     attn::first_keys(1) | (attn::causal() & twice));
#else
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor,
                                     (attn::first_keys(1) | attn::causal()) & twice);
#endif
}

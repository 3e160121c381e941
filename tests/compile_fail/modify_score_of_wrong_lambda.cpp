// error: attn::modify_score takes a const callable that maps (score, ScorePosition)
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(read_only, read_only, read_only, tensor,
                                     attn::modify_score([](float score) { return score; }));
#else
  attn::scaled_dot_product_attention(
      read_only, read_only, read_only, tensor,
      attn::modify_score([](float score, attn::ScorePosition) { return score; }));
#endif
}

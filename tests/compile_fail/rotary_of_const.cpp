// error: attn: out is written to: its element type must not be const
#include "attn/layers/rotary.hpp"

int main() {
  const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<float> x({1, 1, 2, 4});
#else
  attn::Tensor4Buffer<float> x({1, 1, 2, 4});
#endif
  rotary.apply(x, 0);
}

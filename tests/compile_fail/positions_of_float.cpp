// error: attn: the positions of tokens are std::int32_t or std::int64_t
#include <cstdint>

#include "attn/layers/rotary.hpp"

int main() {
  const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
  attn::Tensor4Buffer<float> x({1, 1, 2, 4});
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4Buffer<float> positions({1, 1, 2, 1});
#else
  const attn::Tensor4Buffer<std::int32_t> positions({1, 1, 2, 1});
#endif
  rotary.apply(x, positions.view());
}

// error: attn: options come fifth, behind the mask: give attn::no_mask() as argument 4
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
  attn::KeyValueCache<float> cache(1, 2, 4, 4);
  const attn::AttentionOptions options;
#ifdef ATTN_EXPECT_ERROR
  layer.step(x, cache, out, options);
#else
  layer.step(x, cache, out, attn::no_mask(), options);
#endif
}

// error: attn: behind the inputs comes the output (an attn::Tensor4 view) or a mask
#include "attn/kv_cache.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::KeyValueCache<float> cache(1, 1, 2, 2);
  const auto first = [](attn::ScorePosition at) { return at.key == 0; };
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(tensor, cache, first);
#else
  attn::scaled_dot_product_attention(tensor, cache, attn::keep_if(first));
#endif
}

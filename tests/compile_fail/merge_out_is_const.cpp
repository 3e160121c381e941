// error: attn: out is written to: its element type must not be const
#include "attn/merge.hpp"

int main() {
  float data[4] = {}, sums[2] = {};
  const attn::Tensor4<float> part(data, {1, 1, 2, 2}), sum(sums, {1, 1, 2, 1});
#ifdef ATTN_EXPECT_ERROR
  attn::merge_attention(part, sum, part, sum, attn::Tensor4<const float>(part), sum);
#else
  attn::merge_attention(part, sum, part, sum, part, sum);
#endif
}

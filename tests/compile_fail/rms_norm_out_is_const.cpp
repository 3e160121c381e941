// error: attn: out is written to: its element type must not be const
#include "attn/layers/rms_norm.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  attn::rms_norm(tensor, attn::RmsNormWeights<float>(), attn::Tensor4<const float>(tensor));
#else
  attn::rms_norm(tensor, attn::RmsNormWeights<float>(), tensor);
#endif
}

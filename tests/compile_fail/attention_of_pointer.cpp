// error: attn: a tensor must be an attn::Tensor4 view (or Tensor4Buffer, or an Eigen
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  const float* const q = data;
#else
  const attn::Tensor4<float> q = tensor;
#endif
  attn::scaled_dot_product_attention(q, tensor, tensor, tensor);
}

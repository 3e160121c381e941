// error: attn: q, k and v must be attn::Tensor4 views (or Tensor4Buffer)
#include <Eigen/Core>

#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  const Eigen::MatrixXf q(2, 2);
  attn::scaled_dot_product_attention(q, read_only, read_only, tensor);
#else
  const Eigen::MatrixXf q(2, 2);
  attn::scaled_dot_product_attention(attn::view(q), read_only, read_only, tensor);
#endif
}

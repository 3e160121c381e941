// error: attn: argument 4 of scaled_dot_product_attention must be the output
#include <Eigen/Core>

#include "attn/attention.hpp"

int main() {
  const float constant[4] = {};
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  Eigen::MatrixXf out(2, 2);
  attn::scaled_dot_product_attention(read_only, read_only, read_only, out);
#else
  Eigen::MatrixXf out(2, 2);
  attn::scaled_dot_product_attention(read_only, read_only, read_only, attn::view(out));
#endif
}

// error: attn: this Eigen expression has no elements in memory yet: evaluate it into a Matrix first
#include <Eigen/Core>

#include "attn/attention.hpp"

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Zero(2, 2);
  Eigen::MatrixXf out(2, 2);
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(x * x, x, x, out);
#else
  attn::scaled_dot_product_attention((x * x).eval(), x, x, out);
#endif
}

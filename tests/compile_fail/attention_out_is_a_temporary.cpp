// error: attn: out is a temporary that owns its memory: what is written would be lost
#include <Eigen/Core>

#include "attn/attention.hpp"

int main() {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Zero(2, 2);
#ifdef ATTN_EXPECT_ERROR
  attn::scaled_dot_product_attention(q, q, q, Eigen::MatrixXf(2, 2));
#else
  Eigen::MatrixXf out(2, 4);
  attn::scaled_dot_product_attention(q, q, q, out.leftCols(2));
#endif
}

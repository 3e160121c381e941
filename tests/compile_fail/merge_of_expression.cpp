// error: attn: this Eigen expression has no elements in memory yet: evaluate it into a Matrix first
#include <Eigen/Core>

#include "attn/merge.hpp"

int main() {
  const Eigen::MatrixXf part = Eigen::MatrixXf::Zero(2, 2), sums = Eigen::MatrixXf::Zero(2, 1);
  Eigen::MatrixXf out(2, 2), sum(2, 1);
#ifdef ATTN_EXPECT_ERROR
  attn::merge_attention(part, sums, part + part, sums, out, sum);
#else
  attn::merge_attention(part, sums, part, sums, out, sum);
#endif
}

// error: attn: a mask keeps a view of its matrix, which must not be a temporary
#include <Eigen/Core>

#include "attn/mask.hpp"

int main() {
  const Eigen::MatrixXf bias = Eigen::MatrixXf::Zero(2, 2);
#ifdef ATTN_EXPECT_ERROR
  attn::add_bias((2 * bias).eval());
#else
  attn::add_bias(bias);
#endif
}

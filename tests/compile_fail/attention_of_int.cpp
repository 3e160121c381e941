// error: attn: the elements of a tensor must be double, float, Eigen::half or
#include <Eigen/Core>

#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Tensor4<const float> read_only(constant, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  const int integers[4] = {};
  attn::scaled_dot_product_attention(attn::bhsd(integers, {1, 1, 2, 2}), read_only, read_only,
                                     tensor);
#else
  const double doubles[4] = {};
  attn::scaled_dot_product_attention(attn::bhsd(doubles, {1, 1, 2, 2}), read_only, read_only,
                                     tensor);
#endif
}

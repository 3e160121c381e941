// error: attn: the arguments of merge_attention are attn::Tensor4 views (or Tensor4Buffer)
#include <Eigen/Core>

#include "attn/merge.hpp"

int main() {
  float data[4] = {};
  const float constant[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  Eigen::MatrixXf out(2, 2);
  attn::merge_attention(tensor, attn::Tensor4<const float>(constant, {1, 1, 2, 1}), tensor,
                        attn::Tensor4<const float>(constant, {1, 1, 2, 1}), out,
                        attn::Tensor4<float>(data, {1, 1, 2, 1}));
#else
  Eigen::MatrixXf out(2, 2);
  attn::merge_attention(tensor, attn::Tensor4<const float>(constant, {1, 1, 2, 1}), tensor,
                        attn::Tensor4<const float>(constant, {1, 1, 2, 1}), attn::view(out),
                        attn::Tensor4<float>(data, {1, 1, 2, 1}));
#endif
}

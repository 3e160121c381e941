// error: attn: this Eigen expression has no elements in memory yet: evaluate it into a Matrix first
#include "attn/layers/attention_block.hpp"

int main() {
  attn::AttentionConfig config;
  config.model_dim = 8;
  config.num_heads = 2;
  const attn::AttentionBlock<float> block(config, 1);
  const Eigen::MatrixXf x = Eigen::MatrixXf::Zero(2, 8);
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
#ifdef ATTN_EXPECT_ERROR
  block.forward(x + x, out);
#else
  block.forward(x, out);
#endif
}

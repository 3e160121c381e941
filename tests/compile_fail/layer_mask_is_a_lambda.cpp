// error: attn: argument 3 must be a mask of attn/mask.hpp; wrap a lambda in keep_if
#include "attn/layers/multi_head.hpp"

int main() {
  const attn::MultiHeadAttention<float> layer(8, 2, 1);
  const attn::Tensor4Buffer<float> x({1, 1, 2, 8});
  attn::Tensor4Buffer<float> out({1, 1, 2, 8});
  const auto sees = [](attn::ScorePosition at) { return at.key <= at.query; };
#ifdef ATTN_EXPECT_ERROR
  layer.forward(x, out, sees);
#else
  layer.forward(x, out, attn::keep_if(sees));
#endif
}

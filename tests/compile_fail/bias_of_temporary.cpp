// error: deleted
#include <vector>

#include "attn/layers/linear.hpp"

std::vector<float> make() { return {1.0f}; }

int main() {
  const float one = 1;
  const attn::Tensor4<const float> weight(&one, {1, 1, 1, 1});
#ifdef ATTN_EXPECT_ERROR
  const attn::LinearWeights<float> weights{weight, make()};
#else
  const std::vector<float> bias = make();
  const attn::LinearWeights<float> weights{weight, bias};
#endif
  return weights.bias == nullptr;
}

// error: attn: argument 4 must be a mask of attn/mask.hpp; wrap a lambda in keep_if
#include "attn/attention.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const auto first = [](attn::ScorePosition at) { return at.key == 0; };
#ifdef ATTN_EXPECT_ERROR
  attn::attention_workspace_bytes(tensor, tensor, tensor, first);
#else
  attn::attention_workspace_bytes(tensor, tensor, tensor, attn::keep_if(first));
#endif
}

// error: attn: argument 6 must be a mask of attn/mask.hpp; wrap a lambda in keep_if
#include "attn/inspect.hpp"

int main() {
  const float data[4] = {};
  const attn::Tensor4<const float> tensor(data, {1, 1, 2, 2});
  const auto is_first = [](attn::ScorePosition at) { return at.key == 0; };
#ifdef ATTN_EXPECT_ERROR
  attn::inspect_attention(tensor, tensor, tensor, 0, 0, is_first);
#else
  attn::inspect_attention(tensor, tensor, tensor, 0, 0, attn::keep_if(is_first));
#endif
}

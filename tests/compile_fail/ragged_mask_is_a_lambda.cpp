// error: attn: argument 6 must be a mask of attn/mask.hpp; wrap a lambda in keep_if
#include "attn/ragged.hpp"

int main() {
  float data[4] = {};
  const attn::Tensor4<float> tensor(data, {1, 1, 2, 2});
  const attn::Index starts[] = {0, 1, 2};
  const auto first = [](attn::ScorePosition at) { return at.key == 0; };
#ifdef ATTN_EXPECT_ERROR
  attn::ragged_attention(tensor, tensor, tensor, tensor, starts, first);
#else
  attn::ragged_attention(tensor, tensor, tensor, tensor, starts, attn::keep_if(first));
#endif
}

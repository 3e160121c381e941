// error: attn::Tensor4Buffer holds plain numbers: T is not const
#include "attn/tensor.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  attn::Tensor4Buffer<const float> buffer;
#else
  attn::Tensor4Buffer<float> buffer;
#endif
  return buffer.empty() ? 0 : 1;
}

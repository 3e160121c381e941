// error: attn: the ids of same_segment are std::int32_t
#include <cstdint>

#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  (void)attn::same_segment(attn::Tensor4<const std::int64_t>());
#else
  (void)attn::same_segment(attn::Tensor4<const std::int32_t>());
#endif
}

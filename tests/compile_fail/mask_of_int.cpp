// error: attn: the elements of a boolean mask are bool or std::uint8_t
#include <cstdint>

#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const int blocked[1] = {};
#else
  const std::uint8_t blocked[1] = {};
#endif
  (void)attn::drop_where(attn::bhsd(blocked, {1, 1, 1, 1}));
}

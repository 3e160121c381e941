// error: which holds bits, must be copied to std::uint8_t first
#include <cstdint>
#include <vector>

#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const std::vector<bool> keys = {true, false};
  attn::keep_where(keys);
#else
  const std::vector<std::uint8_t> keys = {1, 0};
  attn::keep_where(attn::bhsd(keys.data(), {1, 1, 1, 2}));
#endif
}

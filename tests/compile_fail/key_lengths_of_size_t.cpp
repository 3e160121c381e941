// error: attn: key_lengths takes signed integers of 32 or 64 bits
#include <cstddef>
#include <vector>

#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const std::vector<std::size_t> lengths = {1, 2};
#else
  const std::vector<attn::Index> lengths = {1, 2};
#endif
  attn::key_lengths(lengths);
}

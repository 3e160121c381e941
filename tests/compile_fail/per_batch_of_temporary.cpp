// error: deleted
#include <vector>

#include "attn/mask.hpp"

std::vector<int> make() { return {1}; }

int main() {
#ifdef ATTN_EXPECT_ERROR
  (void)attn::key_lengths(make());
#else
  const std::vector<int> lengths = make();
  (void)attn::key_lengths(lengths);
#endif
}

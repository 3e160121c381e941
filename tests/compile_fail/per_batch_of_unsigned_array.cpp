// error: deleted
#include <vector>

#include "attn/options.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const std::vector<unsigned> numbers = {1};
#else
  const std::vector<int> numbers = {1};
#endif
  const attn::PerBatch lengths = numbers;
  return static_cast<int>(lengths[0]);
}

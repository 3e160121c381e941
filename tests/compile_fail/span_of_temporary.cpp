// error: deleted
#include <vector>

#include "attn/config.hpp"

std::vector<double> make() { return {1.0}; }

int main() {
#ifdef ATTN_EXPECT_ERROR
  const attn::Span<const double> span = make();
#else
  const std::vector<double> numbers = make();
  const attn::Span<const double> span = numbers;
#endif
  return span.size() == 1;
}

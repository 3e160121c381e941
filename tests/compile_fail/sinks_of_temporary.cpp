// error: deleted
#include <vector>

#include "attn/options.hpp"

int main() {
  attn::AttentionOptions options;
#ifdef ATTN_EXPECT_ERROR
  options.sinks = std::vector<double>{1.0};
#else
  const std::vector<double> sinks = {1.0};
  options.sinks = sinks;
#endif
  return options.sinks.size() == 1;
}

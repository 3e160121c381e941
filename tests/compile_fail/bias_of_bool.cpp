// error: a boolean mask is keep_where(view) or drop_where(view)
#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const bool bias[1] = {};
#else
  const float bias[1] = {};
#endif
  (void)attn::add_bias(attn::bhsd(bias, {1, 1, 1, 1}));
}

// error: mask that is added to the scores is add_bias(view)
#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const float keep[1] = {};
#else
  const bool keep[1] = {};
#endif
  (void)attn::keep_where(attn::bhsd(keep, {1, 1, 1, 1}));
}

// error: attn::drop_if takes a const callable bool(ScorePosition)
#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  (void)attn::drop_if([calls = 0](attn::ScorePosition) mutable { return ++calls > 3; });
#else
  (void)attn::drop_if([limit = 3](attn::ScorePosition at) { return at.key > limit; });
#endif
}

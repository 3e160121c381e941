// error: attn::keep_if takes a const callable bool(ScorePosition)
#include "attn/mask.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  (void)attn::keep_if([](int query, int key) { return key <= query; });
#else
  (void)attn::keep_if([](attn::ScorePosition at) { return at.key <= at.query; });
#endif
}

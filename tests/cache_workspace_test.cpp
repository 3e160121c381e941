// The workspace of a call over a cache is asked for once, of the empty cache, and serves every
// length: also where the form of tile changes with the length, and in rings of any size, whose
// streams have no end.
#include <gtest/gtest.h>

#include <vector>

#include "attn/kv_cache.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

/// Appends `chunk` tokens at a time and attends to them, up to `length` tokens.
template <class Cache>
void expect_one_workspace_serves(Cache cache, Index query_heads, Index chunk, Index length) {
  SCOPED_TRACE(::testing::Message() << query_heads << " query heads, chunks of " << chunk);
  TestTensor<float> tokens({1, 1, chunk, 3}), q({1, query_heads, chunk, 3}), out(q.shape());
  tokens.fill_uniform(1);
  q.fill_uniform(2);
  const std::size_t bytes = attention_workspace_bytes(q.view(), cache, causal_bottom_right());
  std::vector<char> memory(bytes);
  AttentionOptions options;
  options.workspace = {memory.data(), memory.size()};
  for (Index held = 0; held + chunk <= length; held += chunk) {
    cache.append(tokens.view(), tokens.view());
    ASSERT_NO_THROW(
        scaled_dot_product_attention(q.view(), cache, out.view(), causal_bottom_right(), options))
        << "at " << held + chunk << " tokens";
    ASSERT_EQ(attention_workspace_bytes(q.view(), cache, causal_bottom_right()), bytes);
  }
}

TEST(CacheWorkspace, ServesEveryLength) {
  for (const Index query_heads : {1, 3, 5}) {
    for (const Index chunk : {1, 6, 8}) {
      for (const Index window : {1, 52, 100, 130, 600}) {
        expect_one_workspace_serves(RollingKeyValueCache<float>(1, 1, window, 3, 3, chunk),
                                    query_heads, chunk, 700);
      }
      expect_one_workspace_serves(KeyValueCache<float>(1, 1, 700, 3), query_heads, chunk, 700);
      expect_one_workspace_serves(PagedKeyValueCache<float>(50, 16, 1, 1, 3), query_heads, chunk,
                                  700);
    }
  }
}

// Few rows split keys 4096 at a time; those of a ring may lie in one split more.
TEST(CacheWorkspace, ServesSplits) {
  expect_one_workspace_serves(RollingKeyValueCache<float>(1, 1, 4090, 3, 3, 8), 1, 8, 10000);
  expect_one_workspace_serves(KeyValueCache<float>(1, 1, 9000, 3), 2, 8, 9000);
}

}  // namespace
}  // namespace test
}  // namespace attn

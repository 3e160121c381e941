// The sizes of caches by name, what each cache takes of them, and what never allocates.
#include "attn/caches/cache_shape.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "support/allocations.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

CacheShape common() {
  CacheShape shape;
  shape.batch = 2;
  shape.num_kv_heads = 3;
  shape.head_dim = 4;
  shape.value_dim = 5;
  return shape;
}
CacheShape contiguous() {
  CacheShape shape = common();
  shape.capacity = 7;
  return shape;
}
CacheShape rolling() {
  CacheShape shape = common();
  shape.window = 6;
  shape.longest_append = 3;
  return shape;
}
CacheShape paged() {
  CacheShape shape = common();
  shape.num_pages = 8;
  shape.page_length = 3;
  return shape;
}

template <class Cache>
void expect_same_cache(const Cache& a, const Cache& b) {
  EXPECT_EQ(a.batch(), b.batch());
  EXPECT_EQ(a.num_kv_heads(), b.num_kv_heads());
  EXPECT_EQ(a.head_dim(), b.head_dim());
  EXPECT_EQ(a.value_dim(), b.value_dim());
  EXPECT_EQ(a.held_capacity(), b.held_capacity());
  // What is stored: [sequences or pages, heads, rows, dim].
  EXPECT_EQ(a.source().keys.shape, b.source().keys.shape);
  EXPECT_EQ(a.source().values.shape, b.source().values.shape);
}

TEST(CacheShape, MakesTheCacheOfThePositionalConstructor) {
  expect_same_cache(KeyValueCache<float>(contiguous()), KeyValueCache<float>(2, 3, 7, 4, 5));
  const RollingKeyValueCache<float> one(rolling()), other(2, 3, 6, 4, 5, 3);
  expect_same_cache(one, other);
  EXPECT_EQ(one.window(), other.window());
  EXPECT_EQ(one.ring(), other.ring());
  const PagedKeyValueCache<float> pages(paged()), others(8, 3, 2, 3, 4, 5);
  expect_same_cache(pages, others);
  EXPECT_EQ(pages.num_pages(), 8);
  EXPECT_EQ(pages.page_length(), 3);
}

TEST(CacheShape, HasDefaults) {
  CacheShape shape;
  shape.num_kv_heads = 2;
  shape.head_dim = 4;
  shape.capacity = 3;
  const KeyValueCache<float> cache(shape);
  EXPECT_EQ(cache.batch(), 1);
  EXPECT_EQ(cache.value_dim(), 4);
  shape.value_dim = 0;
  shape.capacity = 0;
  const KeyValueCache<float> nothing(shape);
  EXPECT_EQ(nothing.value_dim(), 0);
  EXPECT_EQ(nothing.capacity(), 0);
}

TEST(CacheShape, SaysTheMostKeysThatASequenceHolds) {
  EXPECT_EQ(KeyValueCache<float>(contiguous()).held_capacity(), 7);
  RollingKeyValueCache<float> ring(rolling());
  EXPECT_EQ(ring.held_capacity(), 8);
  TestTensor<float> k({2, 3, 10, 4}), v({2, 3, 10, 5});
  ring.append(k.view(), v.view());  // longer than announced
  EXPECT_EQ(ring.held_capacity(), 15);
  CacheShape pages = paged();
  EXPECT_EQ(PagedKeyValueCache<float>(pages).held_capacity(), 24);
  pages.capacity = 7;
  EXPECT_EQ(PagedKeyValueCache<float>(pages).held_capacity(), 7);
  pages.capacity = 100;
  EXPECT_EQ(PagedKeyValueCache<float>(pages).held_capacity(), 24);
  EXPECT_EQ(KeyValueCache<float>().held_capacity(), 0);
  EXPECT_EQ(RollingKeyValueCache<float>().held_capacity(), 0);
  EXPECT_EQ(PagedKeyValueCache<float>().held_capacity(), 0);
}

TEST(CacheShape, LimitsTheSequencesOfPages) {
  CacheShape shape = paged();
  shape.capacity = 7;
  PagedKeyValueCache<float> cache(shape);
  TestTensor<float> k({1, 3, 5, 4}), v({1, 3, 5, 5});
  k.fill_uniform(1);
  v.fill_uniform(2);
  cache.append_to(0, k.view(), v.view());
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append_to(0, k.view(), v.view()); }),
            "PagedKeyValueCache::append_to: append past capacity: sequence 0 holds 5 of 7 tokens, "
            "5 more do not fit; got cached keys [8, 3, 3, 4], cached values [8, 3, 3, 5], k [1, 3, "
            "5, 4], v [1, 3, 5, 5]");
  EXPECT_EQ(cache.num_free_pages(), 6);
  cache.append_to(1, k.view(), v.view());
  cache.share_prefix(1, 0, 4);
  const Index two = 2;
  cache.append_to(0, k.view().slice_length(0, two), v.view().slice_length(0, two));
  EXPECT_EQ(cache.length(0), 6);
  EXPECT_EQ(cache.keys()(cache.pages(0)[1], 2, 2, 3), k(0, 2, 1, 3));
}

TEST(CacheShape, IsRefusedWhereItNamesAnotherCache) {
  EXPECT_EQ(message_of<ShapeError>([] { KeyValueCache<float>{rolling()}; }),
            "KeyValueCache: takes a capacity, and no window or pages; got batch 2, num_kv_heads 3, "
            "head_dim 4, value_dim 5, window 6, longest_append 3");
  EXPECT_EQ(message_of<ShapeError>([] { KeyValueCache<float>{common()}; }),
            "KeyValueCache: takes a capacity, and no window or pages; got batch 2, num_kv_heads 3, "
            "head_dim 4, value_dim 5, window 0, longest_append 1, num_pages 0, page_length 0");
  EXPECT_EQ(message_of<ShapeError>([] { RollingKeyValueCache<float>{contiguous()}; }),
            "RollingKeyValueCache: takes a window and a longest_append of 1 or more, and no "
            "capacity or pages; got batch 2, num_kv_heads 3, head_dim 4, value_dim 5, capacity 7");
  EXPECT_EQ(message_of<ShapeError>([] { PagedKeyValueCache<float>{rolling()}; }),
            "PagedKeyValueCache: takes a page_length of 1 or more, and no window; got batch 2, "
            "num_kv_heads 3, head_dim 4, value_dim 5, window 6, longest_append 3");
  CacheShape both = contiguous();
  both.num_pages = 1;
  EXPECT_THROW(KeyValueCache<float>{both}, ShapeError);
  both = rolling();
  both.page_length = 1;
  EXPECT_THROW(RollingKeyValueCache<float>{both}, ShapeError);
  both = paged();
  both.longest_append = 2;
  EXPECT_THROW(PagedKeyValueCache<float>{both}, ShapeError);
}

TEST(CacheShape, NegativeSizesAreRefused) {
  const auto refuses = [](const auto& make, CacheShape shape, auto spoil) {
    spoil(shape);
    EXPECT_THROW(make(shape), ShapeError);
  };
  const auto refuse_all = [&](const auto& make, const CacheShape& shape) {
    refuses(make, shape, [](CacheShape& s) { s.batch = -1; });
    refuses(make, shape, [](CacheShape& s) { s.num_kv_heads = -1; });
    refuses(make, shape, [](CacheShape& s) { s.head_dim = -1; });
    refuses(make, shape, [](CacheShape& s) { s.value_dim = -1; });
    refuses(make, shape, [](CacheShape& s) { s.capacity = -1; });
    refuses(make, shape, [](CacheShape& s) { s.window = -1; });
    refuses(make, shape, [](CacheShape& s) { s.longest_append = -1; });
    refuses(make, shape, [](CacheShape& s) { s.num_pages = -1; });
    refuses(make, shape, [](CacheShape& s) { s.page_length = -1; });
  };
  refuse_all([](const CacheShape& s) { return KeyValueCache<float>(s); }, contiguous());
  refuse_all([](const CacheShape& s) { return RollingKeyValueCache<float>(s); }, rolling());
  refuse_all([](const CacheShape& s) { return PagedKeyValueCache<float>(s); }, paged());
}

/// Steps of `count` tokens at every length up to `longest`: none allocates.
template <class Cache>
void expect_steps_without_allocation(Cache cache, Index longest, Index count) {
  const GroupedQueryAttention<float> layer(
      [&] {
        AttentionConfig config;
        config.model_dim = 8;
        config.num_heads = 2;
        config.num_kv_heads = cache.num_kv_heads();
        config.head_dim = cache.head_dim();
        return config;
      }(),
      1);
  TestTensor<float> x({cache.batch(), 1, count, 8}), out(x.shape());
  x.fill_uniform(1);
  // More than a step of such sizes can need.
  std::vector<char> memory(std::size_t{1} << 23);
  AttentionOptions options;
  options.workspace = {memory.data(), memory.size()};
  for (Index length = 0; length + count <= longest; length += count) {
    allocations().reset();
    layer.step(x.view(), cache, out.view(), causal(), options);
    ASSERT_EQ(allocations().count, 0u) << length << " tokens";
  }
  allocations().reset();
  cache.truncate(1);
  cache.reset(0);
  cache.reset();
  EXPECT_EQ(allocations().count, 0u);
}

TEST(Caches, StepsWithAWorkspaceAllocateNothing) {
  constexpr Index kLongest = 2000;
  CacheShape shape;
  shape.batch = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = 4;
  CacheShape plain = shape, ring = shape, pages = shape;
  plain.capacity = kLongest;
  ring.window = 50;
  ring.longest_append = kLongest;  // so that truncate(1) is allowed
  pages.page_length = 3;
  pages.num_pages = 2 * (kLongest / 3 + 1);
  for (const Index count : {1, 7}) {
    expect_steps_without_allocation(KeyValueCache<float>(plain), kLongest, count);
    expect_steps_without_allocation(RollingKeyValueCache<float>(ring), kLongest, count);
    expect_steps_without_allocation(PagedKeyValueCache<float>(pages), kLongest, count);
    pages.capacity = kLongest;
  }
}

TEST(Caches, PagesAreSharedWithoutAllocation) {
  PagedKeyValueCache<float> cache(40, 2, 3, 1, 4);
  TestTensor<float> k({1, 1, 5, 4}), v({1, 1, 5, 4});
  k.fill_uniform(1);
  v.fill_uniform(2);
  allocations().reset();
  for (int round = 0; round < 3; ++round) {
    cache.append_to(0, k.view(), v.view());
    cache.share_prefix(0, 1, cache.length(0));
    cache.share_prefix(1, 2, cache.length(1) - 1);
    cache.append_to(2, k.view(), v.view());  // copies the last page
    cache.append_to(1, k.view(), v.view());
  }
  EXPECT_EQ(allocations().count, 0u);
}

}  // namespace
}  // namespace test
}  // namespace attn

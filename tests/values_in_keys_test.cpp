// Caches whose values are the first elements of their keys, as in latent attention: stored once,
// with the bits of caches that hold both.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rotary.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 18, kValueDim = 16, kHeads = 1, kQueryHeads = 16, kBatch = 2;

CacheShape shape_of_both() {
  CacheShape shape;
  shape.batch = kBatch;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kKeyDim;
  shape.value_dim = kValueDim;
  return shape;
}
CacheShape once(CacheShape shape) {
  shape.values_in_keys = true;
  return shape;
}
CacheShape contiguous() {
  CacheShape shape = shape_of_both();
  shape.capacity = 60;
  return shape;
}
CacheShape rolling() {
  CacheShape shape = shape_of_both();
  shape.window = 9;
  shape.longest_append = 8;
  return shape;
}
CacheShape paged() {
  CacheShape shape = shape_of_both();
  shape.num_pages = 40;
  shape.page_length = 4;
  return shape;
}

TestTensor<float> tokens(Index batch, Index length, std::uint64_t seed) {
  TestTensor<float> k({batch, kHeads, length, kKeyDim});
  k.fill_uniform(seed, 2);
  return k;
}
template <class T>
Tensor4<T> values_of(const Tensor4<T>& k) {
  return Tensor4<T>(k.data(), Shape4{k.batch(), k.heads(), k.length(), kValueDim}, k.stride());
}

template <class Cache>
void expect_same_bits(const Cache& a, const Cache& b) {
  for (const Index length : {1, 3}) {
    TestTensor<float> q({kBatch, kQueryHeads, length, kKeyDim});
    q.fill_uniform(7, 3);
    const auto of_a = scaled_dot_product_attention(q.view(), a, causal(), {}, Want::weights);
    const auto of_b = scaled_dot_product_attention(q.view(), b, causal(), {}, Want::weights);
    ASSERT_EQ(of_a.output.shape().dim, kValueDim);
    EXPECT_TRUE(same_bits(of_a.output.view(), of_b.output.view()));
    EXPECT_TRUE(same_bits(of_a.weights.view(), of_b.weights.view()));
  }
}

/// All that changes a cache, done to both.
template <class Cache>
void expect_alike(Cache alone, Cache both) {
  ASSERT_TRUE(alone.values_in_keys());
  ASSERT_FALSE(both.values_in_keys());
  EXPECT_EQ(alone.value_dim(), kValueDim);
  EXPECT_EQ(alone.values().data(), alone.keys().data());
  const auto append = [&](Index count, std::uint64_t seed) {
    const auto k = tokens(kBatch, count, seed);
    alone.append(k.view());
    both.append(k.view(), values_of(k.view()));
    expect_same_bits(alone, both);
  };
  for (std::uint64_t step = 0; step < 8; ++step) append(4, step);
  const std::vector<Index> counts = {1, 3};
  const auto padded = tokens(kBatch, 3, 30);
  alone.append(padded.view(), counts);
  both.append(padded.view(), values_of(padded.view()), counts);
  expect_same_bits(alone, both);
  const auto of_one = tokens(1, 2, 31);
  alone.append_to(1, of_one.view());
  both.append_to(1, of_one.view(), values_of(of_one.view()));
  expect_same_bits(alone, both);
  for (const std::vector<Index>& parents : {std::vector<Index>{1, 0}, std::vector<Index>{1, 1}}) {
    alone.reorder(parents);
    both.reorder(parents);
    expect_same_bits(alone, both);
    append(2, 40);
  }
  std::vector<Index> kept;
  for (Index t = 0; t < alone.length(0); ++t) {
    if (t != alone.length(0) - 3) kept.push_back(t);
  }
  alone.keep_tokens(0, kept);
  both.keep_tokens(0, kept);
  expect_same_bits(alone, both);
  alone.truncate(PerBatch(alone.lengths()) - 1);
  both.truncate(PerBatch(both.lengths()) - 1);
  expect_same_bits(alone, both);

  TestTensor<float> saved({kBatch, kHeads, alone.longest_held(), kKeyDim});
  const std::vector<Index> lengths(alone.lengths().begin(), alone.lengths().end());
  const std::vector<Index> held = {alone.num_held(0), alone.num_held(1)};
  alone.save(saved.view());
  alone.reset();
  alone.restore(lengths, saved.view(), held);
  expect_same_bits(alone, both);
  Cache copy(alone), moved;
  moved.swap(copy);
  expect_same_bits(moved, both);
}

TEST(ValuesInKeys, HaveTheBitsOfValuesOfTheirOwn) {
  expect_alike(KeyValueCache<float>(once(contiguous())), KeyValueCache<float>(contiguous()));
  expect_alike(RollingKeyValueCache<float>(once(rolling())),
               RollingKeyValueCache<float>(rolling()));
  expect_alike(PagedKeyValueCache<float>(once(paged())), PagedKeyValueCache<float>(paged()));
  // A ring that grows.
  CacheShape shape = rolling();
  shape.longest_append = 1;
  RollingKeyValueCache<float> alone(once(shape)), both(shape);
  for (const Index count : {1, 30, 2}) {
    const auto k = tokens(kBatch, count, 3);
    alone.append(k.view());
    both.append(k.view(), values_of(k.view()));
  }
  TestTensor<float> q({kBatch, kQueryHeads, 1, kKeyDim});
  q.fill_uniform(7, 3);
  EXPECT_TRUE(same_bits(scaled_dot_product_attention(q.view(), alone).output.view(),
                        scaled_dot_product_attention(q.view(), both).output.view()));
}

TEST(ValuesInKeys, OfTheCallersMemory) {
  for (const Layout layout : kAllLayouts) {
    TestTensor<float> keys({kBatch, kHeads, 60, kKeyDim}, layout);
    expect_alike(KeyValueCache<float>(keys.view(), kValueDim), KeyValueCache<float>(contiguous()));
    EXPECT_TRUE(keys.gaps_are_untouched());
  }
}

// Without a cache, views say the same.
TEST(ValuesInKeys, AreViewsInCallsOverTensors) {
  const auto k = tokens(kBatch, 40, 1);
  TestTensor<float> q({kBatch, kQueryHeads, 2, kKeyDim}), v({kBatch, kHeads, 40, kValueDim});
  q.fill_uniform(7, 3);
  v.fill([&](Index b, Index h, Index i, Index d) { return k(b, h, i, d); });
  KeyValueCache<float> cache(once(contiguous()));
  cache.append(k.view());
  const auto of_views = scaled_dot_product_attention(q.view(), k.view(), values_of(k.view()));
  const auto of_copies = scaled_dot_product_attention(q.view(), k.view(), v.view());
  const auto of_cache = scaled_dot_product_attention(q.view(), cache);
  EXPECT_TRUE(same_bits(of_views.output.view(), of_copies.output.view()));
  EXPECT_TRUE(same_bits(of_cache.output.view(), of_copies.output.view()));
}

template <class Cache>
void expect_refused(const std::string& name, const CacheShape& shape) {
  const auto k = tokens(kBatch, 3, 1);
  const auto one = tokens(1, 3, 1);
  const auto v = values_of(k.view());
  const std::string alone =
      ": the values of this cache are the first elements of its keys: it takes "
      "keys alone, without v";
  const std::string both = ": the values of this cache do not lie in its keys: it takes k and v";
  Cache in_keys(once(shape)), apart(shape);
  const auto refuse = [&](const auto& call, const std::string& text) {
    EXPECT_EQ(message_of<ShapeError>(call), name + text);
  };
  refuse([&] { in_keys.append(k.view(), v); }, "::append" + alone);
  refuse([&] { in_keys.append_to(0, one.view(), values_of(one.view())); }, "::append_to" + alone);
  refuse([&] { in_keys.restore(3, k.view(), v); }, "::restore" + alone);
  TestTensor<float> out_k(k.shape()), out_v({kBatch, kHeads, 3, kValueDim});
  refuse([&] { in_keys.save(out_k.view(), out_v.view()); }, "::save" + alone);
  refuse([&] { apart.append(k.view()); }, "::append" + both);
  refuse([&] { apart.append_to(0, one.view()); }, "::append_to" + both);
  refuse([&] { apart.restore(3, k.view()); }, "::restore" + both);
  refuse([&] { apart.save(out_k.view()); }, "::save" + both);
  const std::vector<Index> none;
  const RotaryEmbedding rotary(kKeyDim, RotaryPairing::half_split);
  refuse([&] { in_keys.keep_tokens(0, none, rotary); },
         "::keep_tokens: keys cannot be turned where their elements are values too");
  EXPECT_EQ(in_keys.longest_length(), 0);
  EXPECT_EQ(apart.longest_length(), 0);
  CacheShape wide = once(shape);
  wide.value_dim = kKeyDim + 1;
  EXPECT_NE(message_of<ShapeError>([&] {
              Cache cache(wide);
            }).find("values in keys have a value_dim of head_dim or less; got batch 2"),
            std::string::npos);
}

TEST(ValuesInKeys, TakeKeysAlone) {
  expect_refused<KeyValueCache<float>>("KeyValueCache", contiguous());
  expect_refused<RollingKeyValueCache<float>>("RollingKeyValueCache", rolling());
  expect_refused<PagedKeyValueCache<float>>("PagedKeyValueCache", paged());
  TestTensor<float> keys({1, 1, 4, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { KeyValueCache<float>(keys.view(), 4); }),
            "KeyValueCache: value_dim must lie within 0 and the dim of keys, got 4; got keys "
            "[1, 1, 4, 3]");
  // A layer projects values of its own.
  const MultiHeadAttention<float> layer(8, 2, 1);
  CacheShape shape;
  shape.num_kv_heads = 2;
  shape.head_dim = 4;
  shape.capacity = 3;
  KeyValueCache<float> cache(once(shape));
  TestTensor<float> x({1, 1, 1, 8}), out(x.shape());
  x.fill_uniform(1);
  EXPECT_THROW(layer.step(x.view(), cache, out.view()), ShapeError);
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_TRUE(out.is_untouched());
}

}  // namespace
}  // namespace test
}  // namespace attn

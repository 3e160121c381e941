// Owners of memory when there is none left: each of their allocations is made to fail in turn. Then
// nothing has leaked, nothing is half done, and the object answers as before.
#include <gtest/gtest.h>

#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.hpp"
#include "support/failing_allocations.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

using Answer = std::vector<double>;

template <class T>
void add(const Tensor4<T>& tensor, Answer& answer) {
  for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    answer.push_back(static_cast<double>(tensor(b, h, i, d)));
  });
}

constexpr Index kKeyDim = 4, kValueDim = 3, kHeads = 2, kModelDim = 8;

TestTensor<float> numbers(const Shape4& shape, std::uint64_t seed) {
  TestTensor<float> tensor(shape);
  tensor.fill_uniform(seed);
  return tensor;
}

// What each kind of owner says: attention over it, or itself.

Answer answer(const Tensor4Buffer<float>& buffer) {
  Answer all;
  add(buffer.view(), all);
  return all;
}
Answer answer(const AttentionResult<float, float>& result) {
  Answer all;
  add(result.output.view(), all);
  add(result.weights.view(), all);
  add(result.log_sum_exp.view(), all);
  return all;
}
template <class Cache, class = std::enable_if_t<detail::is_cache_v<Cache>>>
Answer answer(const Cache& cache) {
  Answer all;
  for (const Index length : cache.lengths()) all.push_back(static_cast<double>(length));
  if (cache.batch() == 0) return all;
  const auto q = numbers({cache.batch(), kHeads, 1, kKeyDim}, 1);
  add(scaled_dot_product_attention(q.view(), cache, causal_bottom_right()).output.view(), all);
  return all;
}
template <class T>
Answer answer(const GroupedQueryAttention<T>& layer) {
  const auto x = numbers({1, 1, 3, kModelDim}, 1);
  TestTensor<float> out(x.shape());
  layer.forward(x.view(), out.view());
  Answer all;
  add(out.view(), all);
  return all;
}
template <class T>
Answer answer(const AttentionBlock<T>& block) {
  const auto x = numbers({1, 1, 3, kModelDim}, 1);
  TestTensor<float> out(x.shape());
  block.forward(x.view(), out.view());
  Answer all;
  add(out.view(), all);
  return all;
}
Answer answer(const RotaryEmbedding& rotary) {
  auto x = numbers({1, 1, 3, rotary.head_dim()}, 1);
  rotary.apply(x.view(), rotary.frequencies().empty() ? 0 : 70);
  Answer all;
  add(x.view(), all);
  return all;
}
Answer answer(const AnyMask& mask) {
  const auto x = numbers({1, 1, 4, 3}, 1);
  return answer(scaled_dot_product_attention(x.view(), x.view(), x.view(), mask));
}

/// operation(object): each failure leaves the object as it was, and it works in the end. Returns
/// how many allocations it makes.
template <class Owner, class Operation>
int expect_strong(const Owner& start, const Operation& operation) {
  const Answer before = answer(start);
  Owner control(start), object(start);
  operation(control);
  const int count =
      fail_each_allocation([&] { operation(object); }, [&] { EXPECT_EQ(answer(object), before); });
  EXPECT_EQ(answer(object), answer(control));
  return count;
}

/// All that every owner can: be copied, moved and assigned.
template <class Owner>
void expect_sound_copies(const Owner& a, const Owner& b, bool copies_allocate = true) {
  const Answer of_a = answer(a), of_b = answer(b);
  ASSERT_NE(of_a, of_b);
  const int copies =
      fail_each_allocation([&] { Owner copy(a); }, [&] { EXPECT_EQ(answer(a), of_a); });
  EXPECT_EQ(copies > 0, copies_allocate);
  for (const bool larger : {true, false}) {
    const Owner &from = larger ? a : b, &to = larger ? b : a;
    expect_strong(to, [&](Owner& object) { object = from; });
    expect_strong(to, [&](Owner& object) {
      const Owner& itself = object;
      object = itself;
    });
  }
  EXPECT_EQ(answer(a), of_a);
  EXPECT_EQ(answer(b), of_b);

  static_assert(std::is_nothrow_move_constructible_v<Owner>);
  static_assert(std::is_nothrow_move_assignable_v<Owner>);
  // One in a struct would make its copy assignment noexcept too, and running out of memory the end.
  EXPECT_EQ(std::is_nothrow_copy_assignable_v<Owner>, !copies_allocate);
  Owner one(a), two(b);
  EXPECT_EQ(fail_each_allocation(
                [&] {
                  Owner moved(std::move(one));
                  one = std::move(two);
                  two = std::move(moved);
                },
                [] {}),
            0);
  EXPECT_EQ(answer(one), of_b);
  EXPECT_EQ(answer(two), of_a);
}

/// Construction: nothing leaks. Returns how many allocations it makes.
template <class Make>
int expect_sound_construction(const Make& make) {
  const int count = fail_each_allocation([&] { make(); }, [] {});
  const std::ptrdiff_t live = failing_allocations().live;
  make();
  EXPECT_EQ(failing_allocations().live, live);
  EXPECT_GT(count, 0);
  return count;
}

TEST(OutOfMemory, Buffers) {
  expect_sound_construction([] { return Tensor4Buffer<double>({1, 2, 3, 4}); });
  Tensor4Buffer<float> a({1, 2, 3, 4}), b({1, 1, 1, 1});
  a(0, 1, 2, 3) = 5;
  b(0, 0, 0, 0) = 7;
  expect_sound_copies(a, b);
}

TEST(OutOfMemory, Results) {
  const auto x = numbers({1, 1, 4, 3}, 1), y = numbers({1, 2, 6, 3}, 2);
  const auto attend = [](const TestTensor<float>& in) {
    return scaled_dot_product_attention(in.view(), in.view(), in.view(), no_mask(), {},
                                        Want::weights | Want::log_sum_exp);
  };
  expect_sound_construction([&] { return attend(x); });
  expect_sound_copies(attend(x), attend(y));
}

/// Tokens of every sequence of a cache.
struct Tokens {
  TestTensor<float> k, v;

  Tokens(Index batch, Index count, std::uint64_t seed)
      : k(numbers({batch, kHeads, count, kKeyDim}, seed)),
        v(numbers({batch, kHeads, count, kValueDim}, seed + 1)) {}
  template <class Cache>
  void append_to(Cache& cache) const {
    cache.append(k.view(), v.view());
  }
};

template <class Cache>
Cache filled(const Cache& empty, Index count, std::uint64_t seed) {
  Cache cache(empty);
  Tokens(cache.batch(), count, seed).append_to(cache);
  return cache;
}

/// What all caches can; no call allocates.
template <class Cache>
void expect_sound_cache(const Cache& a, const Cache& b) {
  expect_sound_copies(a, b);
  expect_sound_copies(a, Cache());
  const Tokens one(a.batch(), 1, 5), alone(1, 1, 6);
  const std::vector<Index> counts = {1, 0};
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { one.append_to(cache); }), 0);
  EXPECT_EQ(
      expect_strong(a, [&](Cache& cache) { cache.append(one.k.view(), one.v.view(), counts); }), 0);
  EXPECT_EQ(
      expect_strong(a, [&](Cache& cache) { cache.append_to(1, alone.k.view(), alone.v.view()); }),
      0);
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.truncate(PerBatch(cache.lengths()) - 1); }),
            0);
  const std::vector<Index> swapped = {1, 0}, repeated = {1, 1};
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.reorder(swapped); }), 0);
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.reorder(repeated); }), 0);
  std::vector<Index> kept;  // all but one
  for (Index t = 0; t < a.length(1); ++t) {
    if (t != a.length(1) - 2) kept.push_back(t);
  }
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.keep_tokens(1, kept); }), 0);
  const Tokens few(a.batch(), 2, 7);
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.restore(2, few.k.view(), few.v.view()); }),
            0);
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.reset(1); }), 0);
  EXPECT_EQ(expect_strong(a, [&](Cache& cache) { cache.reset(); }), 0);
  Cache cache(a), other(b);
  cache.swap(other);
  EXPECT_EQ(answer(cache), answer(b));
}

TEST(OutOfMemory, Caches) {
  using Cache = KeyValueCache<float>;
  expect_sound_construction([] { return Cache(2, kHeads, 9, kKeyDim, kValueDim); });
  const Cache a(2, kHeads, 9, kKeyDim, kValueDim), b(3, kHeads, 5, kKeyDim, kValueDim);
  expect_sound_cache(filled(a, 7, 1), filled(b, 2, 2));
  // Over the caller's memory.
  auto keys = numbers({2, kHeads, 4, kKeyDim}, 1), values = numbers({2, kHeads, 4, kValueDim}, 2);
  expect_sound_construction([&] { return Cache(keys.view(), values.view()); });
  expect_sound_copies(filled(Cache(keys.view(), values.view()), 3, 4), filled(a, 7, 1));
}

TEST(OutOfMemory, CachesOfValuesInKeys) {
  using Cache = KeyValueCache<float>;
  CacheShape shape;
  shape.batch = 2;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kKeyDim;
  shape.value_dim = kValueDim;
  shape.capacity = 9;
  shape.values_in_keys = true;
  expect_sound_construction([&] { return Cache(shape); });
  const Tokens tokens(2, 3, 1);
  Cache full(shape);
  full.append(tokens.k.view());
  expect_sound_copies(full, Cache(2, kHeads, 5, kKeyDim, kValueDim));
  EXPECT_EQ(expect_strong(full, [&](Cache& cache) { cache.append(tokens.k.view()); }), 0);
}

TEST(OutOfMemory, RollingCaches) {
  using Cache = RollingKeyValueCache<float>;
  expect_sound_construction([] { return Cache(2, kHeads, 3, kKeyDim, kValueDim, 4); });
  const Cache a(2, kHeads, 3, kKeyDim, kValueDim, 4), b(3, kHeads, 5, kKeyDim, kValueDim);
  const Cache full = filled(filled(a, 4, 1), 4, 3);
  expect_sound_cache(full, filled(b, 1, 2));
  const Tokens many(2, 20, 7);  // the ring grows
  EXPECT_EQ(expect_strong(full, [&](Cache& cache) { many.append_to(cache); }), 2);
  CacheShape shape;
  shape.batch = 2;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kKeyDim;
  shape.value_dim = kValueDim;
  shape.window = 3;
  shape.longest_append = 4;
  shape.first_tokens = 2;
  const Cache with_first = filled(filled(filled(Cache(shape), 4, 1), 4, 3), 2, 5);
  expect_sound_cache(with_first, filled(b, 1, 2));
  EXPECT_EQ(expect_strong(with_first, [&](Cache& cache) { many.append_to(cache); }), 2);
}

TEST(OutOfMemory, PagedCaches) {
  using Cache = PagedKeyValueCache<float>;
  expect_sound_construction([] { return Cache(9, 2, 2, kHeads, kKeyDim, kValueDim); });
  const Cache a(9, 2, 2, kHeads, kKeyDim, kValueDim), b(7, 1, 3, kHeads, kKeyDim, kValueDim);
  const Cache full = filled(a, 5, 1);
  expect_sound_cache(full, filled(b, 2, 2));
  EXPECT_EQ(expect_strong(full, [&](Cache& cache) { cache.share_prefix(0, 1, 3); }), 0);
  const Tokens many(2, 3, 7);
  EXPECT_EQ(expect_strong(full, [&](Cache& cache) { many.append_to(cache); }), 0);
  // A copy gives back its pages without memory too.
  Cache copy(full);
  EXPECT_EQ(fail_each_allocation([&] { copy.reset(); }, [] {}), 0);
  EXPECT_EQ(copy.num_free_pages(), 9);
}

AttentionConfig sizes() {
  AttentionConfig config;
  config.model_dim = kModelDim;
  config.num_heads = kHeads;
  config.head_dim = kKeyDim;
  config.value_dim = kValueDim;
  return config;
}

TEST(OutOfMemory, Layers) {
  expect_sound_construction([] { return GroupedQueryAttention<float>(sizes(), 1); });
  expect_sound_construction([] { return MultiHeadAttention<float>(kModelDim, kHeads, 1); });
  expect_sound_construction([] { return MultiQueryAttention<float>(sizes(), 1); });
  expect_sound_copies(GroupedQueryAttention<float>(sizes(), 1),
                      GroupedQueryAttention<float>(sizes(), 2), false);
  expect_sound_construction([] { return AttentionBlock<float>(sizes(), 1); });
  expect_sound_copies(AttentionBlock<float>(sizes(), 1), AttentionBlock<float>(sizes(), 2), false);
}

template <class Cache>
void expect_sound_steps(const Cache& cache) {
  const GroupedQueryAttention<float> layer(sizes(), 1);
  const auto x = numbers({cache.batch(), 1, 3, kModelDim}, 9);
  TestTensor<float> out(x.shape());
  const int count =
      expect_strong(cache, [&](Cache& object) { layer.step(x.view(), object, out.view()); });
  EXPECT_GT(count, 0);
  EXPECT_GT(expect_strong(cache, [&](Cache& object) { layer.append(x.view(), x.view(), object); }),
            0);
}

TEST(OutOfMemory, StepsOfLayers) {
  expect_sound_steps(filled(KeyValueCache<float>(2, kHeads, 9, kKeyDim, kValueDim), 4, 1));
  expect_sound_steps(filled(PagedKeyValueCache<float>(9, 2, 2, kHeads, kKeyDim, kValueDim), 3, 1));
  // Here the ring grows too.
  expect_sound_steps(filled(RollingKeyValueCache<float>(2, kHeads, 3, kKeyDim, kValueDim), 1, 1));
}

TEST(OutOfMemory, RotaryEmbeddings) {
  const auto make = [](Index dim) { return RotaryEmbedding(dim, RotaryPairing::half_split); };
  expect_sound_construction([&] { return make(8); });
  expect_sound_copies(make(8), make(4));
  const auto cosines = numbers({1, 1, 5, 3}, 1), sines = numbers({1, 1, 5, 3}, 2);
  const auto given = [&] {
    return RotaryEmbedding::from_tables(8, RotaryPairing::interleaved, cosines.view(),
                                        sines.view());
  };
  expect_sound_construction(given);
  expect_sound_copies(given(), make(8));
}

TEST(OutOfMemory, AnyMasks) {
  const std::vector<double> slopes = {0.5};
  expect_sound_construction([&] { return AnyMask(causal() & alibi(slopes)); });
  expect_sound_copies(AnyMask(causal()), AnyMask(alibi(slopes)), false);
  const int count = expect_strong(AnyMask(causal()), [&](AnyMask& mask) { mask = alibi(slopes); });
  EXPECT_GT(count, 0);
}

TEST(OutOfMemory, ThreadPools) {
  // The memory of the list, and of each of three threads.
  EXPECT_GE(expect_sound_construction([] { ThreadPool pool(4); }), 4);
}

}  // namespace
}  // namespace test
}  // namespace attn

// Boolean masks of the newest keys alone: keep_where(view, first_key) and drop_where, over tensors
// and caches.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/kv_cache.hpp"
#include "support/cached_tokens.hpp"
#include "support/error_cases.hpp"
#include "support/results.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::expect_same;
using test::Inputs;
using test::message_of;
using test::run;
using test::Sizes;
using test::TestTensor;

bool flag(Index b, Index h, Index i, Index n) { return (b + h + 2 * i + 3 * n) % 4 != 0; }

/// The same mask for all keys: those before first(b) are kept, those behind the view dropped.
template <class First>
TestTensor<bool> of_all_keys(const Sizes& sizes, const Shape4& view, const First& first) {
  TestTensor<bool> keep(sizes.scores());
  keep.fill([&](Index b, Index h, Index i, Index j) {
    const Index n = j - first(b);
    return n < 0 || (n < view.dim && flag(view.batch == 1 ? 0 : b, view.heads == 1 ? 0 : h,
                                          view.length == 1 ? 0 : i, n));
  });
  return keep;
}

TEST(NewKeys, AreThoseOfTheViewBehindThePast) {
  for (const Sizes& sizes : {Sizes{2, 4, 2, 2, 5, 300, 9, 6}, Sizes{2, 4, 2, 2, 40, 150, 9, 6},
                             Sizes{1, 2, 1, 1, 3, 5000, 5, 4}}) {
    const Inputs<float> in(sizes, 31);
    for (const Index count : {Index{0}, Index{1}, Index{5}, Index{140}, sizes.key_length}) {
      const Index past = sizes.key_length - count;
      if (past < 0) continue;
      for (const Shape4& shape :
           {Shape4{sizes.batch, sizes.query_heads, sizes.query_length, count},
            Shape4{1, 1, sizes.query_length, count}, Shape4{1, 1, 1, count}}) {
        SCOPED_TRACE(shape.length);
        TestTensor<bool> keep(shape, test::Layout::permuted), drop(shape);
        keep.fill(flag);
        drop.fill([](Index b, Index h, Index i, Index n) { return !flag(b, h, i, n); });
        const auto all = of_all_keys(sizes, shape, [&](Index) { return past; });
        const auto expected = run(in, keep_where(all.view()));
        expect_same(run(in, keep_where(keep.view(), past)), expected, "keep_where");
        expect_same(run(in, drop_where(drop.view(), past)), expected, "drop_where");
        expect_same(run(in, AnyMask(keep_where(keep.view(), past)) & no_mask()), expected, "any");
        const auto before = run(in, keep_where(all.view()) & keys_between(3, kUnlimited));
        expect_same(run(in, keep_where(keep.view(), past) & keys_between(3, kUnlimited)), before,
                    "&");
      }
    }
  }
}

TEST(NewKeys, BeginWhereEachBatchSays) {
  const Sizes sizes{3, 2, 1, 1, 4, 90, 7, 5};
  const Inputs<float> in(sizes, 32);
  const std::vector<Index> first = {80, 20, 86};
  TestTensor<std::uint8_t> keep({3, 1, 4, 4});
  keep.fill([](Index b, Index h, Index i, Index n) { return flag(b, h, i, n) ? 3 : 0; });
  const auto all =
      of_all_keys(sizes, keep.shape(), [&](Index b) { return first[static_cast<std::size_t>(b)]; });
  const auto mask = keep_where(keep.view(), first);
  expect_same(run(in, mask), run(in, keep_where(all.view())), "keys behind the view are dropped");
  expect_same(run(in, mask | first_keys(1)), run(in, keep_where(all.view()) | first_keys(1)), "|");
  const RowBlock rows{1, 2, 0, 4, 86, 0, 4};
  EXPECT_EQ(mask.cover(rows, {0, 20}), Cover::all);
  EXPECT_EQ(mask.cover(rows, {19, 21}), Cover::partial);
  EXPECT_EQ(mask.cover(rows, {24, 30}), Cover::none);
  EXPECT_EQ(mask.key_range(rows, 90).end, 24);
}

TEST(NewKeys, OfMatricesAndBuffers) {
  const Sizes sizes{1, 2, 1, 1, 3, 8, 2, 2};
  const Inputs<float> in(sizes, 33);
  Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic> matrix(3, 2);
  matrix << true, false, true, true, false, true;
  Tensor4Buffer<bool> buffer({1, 1, 3, 2});
  for (Index i = 0; i < 3; ++i) {
    for (Index n = 0; n < 2; ++n) buffer(0, 0, i, n) = matrix(i, n);
  }
  const auto expected = run(in, keep_where(buffer.view(), 6));
  expect_same(run(in, keep_where(buffer, 6)), expected, "buffer");
  expect_same(run(in, keep_where(matrix, 6)), expected, "matrix");
  matrix = !matrix.array();
  expect_same(run(in, drop_where(matrix, 6)), expected, "drop_where of a matrix");
}

// A tree of tokens behind the pasts of sequences of different lengths.
TEST(NewKeys, OfACacheBeginAtItsPast) {
  const test::CachedTokens<float> tokens({30, 9, 17}, 2, 7, 5);
  TestTensor<float> q({3, 4, 4, 7});
  q.fill_uniform(3, 3);
  TestTensor<bool> tree({1, 1, 4, 4}), all({3, 1, 4, 30});
  tree.fill(flag);
  const std::vector<Index> past = {26, 5, 13};
  all.fill([&](Index b, Index, Index i, Index j) {
    const Index n = j - past[static_cast<std::size_t>(b)];
    return n < 0 || (n < 4 && flag(0, 0, i, n));
  });
  KeyValueCache<float> contiguous(3, 2, 40, 7, 5);
  PagedKeyValueCache<float> paged(24, 4, 3, 2, 7, 5);
  const auto hold = [&](auto& cache) {
    tokens.feed(cache, 5);
    test::expect_bits_of_tensors<float>(cache, tokens, q, keep_where(tree.view(), past),
                                        keep_where(all.view()));
  };
  hold(contiguous);
  hold(paged);
}

TEST(NewKeys, SayWhatIsWrong) {
  const Sizes sizes{2, 3, 3, 3, 2, 5, 4, 4};
  const Inputs<float> in(sizes, 34);
  bool flags[64] = {};
  const auto error_of = [&](const Shape4& shape, PerBatch first) {
    return message_of<std::invalid_argument>(
        [&] { run(in, keep_where(Tensor4<const bool>(flags, shape), first)); });
  };
  const std::string got =
      "; got q [2, 3, 2, 4], k [2, 3, 5, 4], v [2, 3, 5, 4], out [2, 3, 2, 4], "
      "weights [2, 3, 2, 5], log_sum_exp [2, 3, 2, 1], ";
  const std::string function = "scaled_dot_product_attention: ";
  const std::vector<Index> two = {1, 3}, three = {1, 2, 3}, late = {0, 6};
  const auto shape_error = [&](const Shape4& shape, const std::string& rule) {
    return function +
           "the keep_where mask behind first_key must have the shape of the scores, or 1, on every "
           "axis but the last, and there hold the keys from first_key on, 5 - 3 = 2: scores [2, 3, "
           "2, 5]" +
           rule + got + test::list_of({{"keep_where mask", shape}}, 1);
  };
  for (const Shape4& shape : {Shape4{1, 1, 2, 3}, Shape4{1, 1, 2, 1}, Shape4{1, 1, 2, 5},
                              Shape4{1, 1, 3, 2}, Shape4{3, 1, 2, 2}}) {
    EXPECT_EQ(error_of(shape, 3), shape_error(shape, ""));
    EXPECT_EQ(error_of(shape, two), shape_error(shape, ""));
  }
  EXPECT_EQ(error_of({1, 1, 2, 2}, three),
            function + "first_key must hold one number, or one each batch of q, 2, got 3" + got +
                "keep_where mask [1, 1, 2, 2]");
  EXPECT_EQ(
      error_of({1, 1, 2, 2}, late),
      function +
          "the first_key of a keep_where mask must lie within 0 and the number of keys 5, got "
          "6 for batch 1" +
          got + "keep_where mask [1, 1, 2, 2]");
}

// A workspace is sized before the tokens are appended.
TEST(NewKeys, MayBeSizedBeforeTheyAreAppended) {
  KeyValueCache<float> cache(1, 1, 16, 4);
  Tensor4Buffer<float> q({1, 2, 3, 4});
  Tensor4Buffer<bool> tree({1, 1, 3, 3});
  EXPECT_GT(attention_workspace_bytes(q, cache, keep_where(tree, 5)), 0u);
  EXPECT_GT(attention_workspace_bytes(q, cache, keys_between(2, kUnlimited)), 0u);
}

}  // namespace
}  // namespace attn

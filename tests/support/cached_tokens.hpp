// tests/support/cached_tokens.hpp - the tokens of several sequences, as caches hold them and as
// plain tensors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/mask.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// k and v of sequences that may differ in length; what lies behind a length is NaN.
template <class T>
struct CachedTokens {
  std::vector<Index> lengths;
  TestTensor<T> k, v;

  CachedTokens(std::vector<Index> all_lengths, Index heads, Index key_dim, Index value_dim,
               std::uint64_t seed = 1)
      : lengths(std::move(all_lengths)), k(shape(heads, key_dim)), v(shape(heads, value_dim)) {
    fill(k, 2 * seed);
    fill(v, 2 * seed + 1);
  }

  Index batch() const { return static_cast<Index>(lengths.size()); }
  Index longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  Index length(Index b) const { return lengths[static_cast<std::size_t>(b)]; }

  /// Appends until every sequence of the cache holds its tokens, at most `chunk` at a time. Shorter
  /// sequences are ready earlier; their padding is NaN.
  template <class Cache>
  void feed(Cache& cache, Index chunk) const {
    for (;;) {
      std::vector<Index> counts;
      for (Index b = 0; b < batch(); ++b) {
        counts.push_back((std::min)(chunk, length(b) - cache.length(b)));
      }
      const Index count = *std::max_element(counts.begin(), counts.end());
      if (count == 0) return;
      cache.append(part(k, cache, counts, count).view(), part(v, cache, counts, count).view(),
                   counts);
    }
  }

 private:
  Shape4 shape(Index heads, Index dim) const { return {batch(), heads, longest(), dim}; }
  void fill(TestTensor<T>& tokens, std::uint64_t seed) const {
    tokens.fill([&](Index b, Index h, Index i, Index d) {
      return i < length(b) ? to<T>(uniform(seed, linear_index(tokens.shape(), b, h, i, d)))
                           : quiet_nan<T>();
    });
  }
  template <class Cache>
  TestTensor<T> part(const TestTensor<T>& tokens, const Cache& cache,
                     const std::vector<Index>& counts, Index count) const {
    const Shape4& s = tokens.shape();
    TestTensor<T> result({s.batch, s.heads, count, s.dim}, Layout::bshd);
    result.fill([&](Index b, Index h, Index i, Index d) {
      const Index at = i - (count - counts[static_cast<std::size_t>(b)]);
      return at < 0 ? quiet_nan<T>() : tokens(b, h, cache.length(b) + at, d);
    });
    return result;
  }
};

/// Attention over a cache and over the tensors of the tokens that it holds: the same bits in the
/// output, the weights and the log-sum-exp. `tensor_mask` is what `mask` means over the cache.
template <class Out, class Cache, class T, class Q, class M, class TensorMask>
void expect_bits_of_tensors(const Cache& cache, const CachedTokens<T>& tokens,
                            const TestTensor<Q>& q, const M& mask, const TensorMask& tensor_mask,
                            const AttentionOptions& options = {}) {
  using A = AccumulationType<Out, T, Q>;
  ASSERT_EQ(cache.longest_length(), tokens.longest());
  const Shape4 rows{q.shape().batch, q.shape().heads, q.shape().length, 1};
  const Shape4 outputs{rows.batch, rows.heads, rows.length, tokens.v.shape().dim};
  const Shape4 scores{rows.batch, rows.heads, rows.length, tokens.longest()};
  TestTensor<Out> out(outputs), expected_out(outputs);
  TestTensor<A> weights(scores), expected_weights(scores), lse(rows), expected_lse(rows);

  scaled_dot_product_attention(q.view(), cache, out.view(), mask, options,
                               AttentionOutputs<A>{weights.view(), lse.view()});
  AttentionOptions tensor_options = options;
  if (!options.query_offset) {
    tensor_options.query_offset = PerBatch(tokens.lengths) - q.shape().length;
  }
  scaled_dot_product_attention(q.view(), tokens.k.view(), tokens.v.view(), expected_out.view(),
                               tensor_mask & key_lengths(tokens.lengths), tensor_options,
                               AttentionOutputs<A>{expected_weights.view(), expected_lse.view()});
  EXPECT_TRUE(same_bits(out.view(), expected_out.view()));
  EXPECT_TRUE(same_bits(weights.view(), expected_weights.view()));
  EXPECT_TRUE(same_bits(lse.view(), expected_lse.view()));
  EXPECT_TRUE(out.gaps_are_untouched());
}

}  // namespace test
}  // namespace attn

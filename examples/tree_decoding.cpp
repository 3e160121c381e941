// Speculative decoding with a tree of drafts: a small model has proposed several continuations that
// share their beginnings. One call verifies them all behind the cached past; the path that the
// large model agrees with stays in the cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "attn/attn.hpp"

namespace {

using attn::Index;

constexpr Index kQueryHeads = 4, kHeads = 2, kDim = 8;

/// What a model's projections would give for some tokens: any numbers, each token's its own.
attn::Tensor4Buffer<float> project(const std::vector<int>& tokens, Index heads, int kind) {
  attn::Tensor4Buffer<float> rows({1, heads, static_cast<Index>(tokens.size()), kDim});
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < rows.shape().length; ++i) {
      for (Index d = 0; d < kDim; ++d) {
        const int token = tokens[static_cast<std::size_t>(i)];
        rows(0, h, i, d) = std::sin(static_cast<float>(token * (7 + kind) + 3 * h + 5 * d + kind));
      }
    }
  }
  return rows;
}
attn::Tensor4Buffer<float> queries(const std::vector<int>& tokens) {
  return project(tokens, kQueryHeads, 0);
}
void append(attn::KeyValueCache<float>& cache, const std::vector<int>& tokens) {
  cache.append(project(tokens, kHeads, 1), project(tokens, kHeads, 2));
}

}  // namespace

int main() {
  // Each draft continues its parent; -1: the past itself.
  //   past - 20 +- 21 +- 23
  //             |     +- 24
  //             +- 22 --- 25
  const std::vector<int> past = {10, 11, 12, 13, 14}, drafts = {20, 21, 22, 23, 24, 25};
  const int parents[] = {-1, 0, 0, 1, 1, 2};
  const Index past_length = static_cast<Index>(past.size());
  const Index count = static_cast<Index>(drafts.size());

  attn::KeyValueCache<float> cache(1, kHeads, 32, kDim);
  append(cache, past);

  // A draft sees the past, its ancestors and itself. The mask is of the drafts alone: it does not
  // grow with the past. (With rotary positions, a draft's is the past's length plus its depth.)
  attn::Tensor4Buffer<bool> tree({1, 1, count, count});
  for (Index i = 0; i < count; ++i) {
    for (Index j = i; j >= 0; j = parents[j]) tree(0, 0, i, j) = true;
  }

  append(cache, drafts);
  const auto verified = attn::scaled_dot_product_attention(queries(drafts), cache,
                                                           attn::keep_where(tree, past_length));

  // Say the model agrees with 20, 22, 25: the cache goes on with these.
  // A draft moves to where its depth is, so that one with rotary positions stands right as it is.
  const std::vector<Index> path = {0, 2, 5};
  std::vector<Index> kept(past.size());
  std::iota(kept.begin(), kept.end(), Index{0});
  std::vector<int> accepted;
  for (const Index i : path) {
    kept.push_back(past_length + i);
    accepted.push_back(drafts[static_cast<std::size_t>(i)]);
  }
  cache.keep_tokens(0, kept);

  // The same, token by token.
  attn::KeyValueCache<float> plain(1, kHeads, 32, kDim);
  append(plain, past);
  float largest = 0;
  for (std::size_t n = 0; n < path.size(); ++n) {
    append(plain, {accepted[n]});
    const auto expected =
        attn::scaled_dot_product_attention(queries({accepted[n]}), plain, attn::causal());
    for (Index h = 0; h < kQueryHeads; ++h) {
      const auto difference = verified.output.view().matrix(0, h).row(path[n]) -
                              expected.output.view().matrix(0, h).row(0);
      largest = std::max(largest, difference.cwiseAbs().maxCoeff());
    }
    std::printf("draft %d, verified in the tree and decoded by itself: largest difference %.1e\n",
                accepted[n], static_cast<double>(largest));
  }
  append(cache, {30});
  append(plain, {30});
  const auto next = attn::scaled_dot_product_attention(queries({30}), cache, attn::causal());
  const auto also = attn::scaled_dot_product_attention(queries({30}), plain, attn::causal());
  const bool same =
      std::equal(next.output.data(), next.output.data() + next.output.size(), also.output.data());
  std::printf("the token after them: %s\n", same ? "the same bits" : "DIFFERENT");
  return largest < 1e-6f && same ? 0 : 1;
}

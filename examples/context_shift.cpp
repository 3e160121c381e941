// A text that becomes longer than the cache: once the cache is full, the first tokens and the newer
// half of the others stay, and their keys are turned to the positions that they have then. In a
// model of one layer the result is that of the tokens that are left, had there never been others.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "attn/attn.hpp"

namespace {

using attn::Index;

constexpr Index kModelDim = 64, kHeads = 4, kCapacity = 48, kFirst = 4, kText = 200;

}  // namespace

int main() {
  const attn::MultiHeadAttention<float> layer(kModelDim, kHeads, 1);
  const attn::RotaryEmbedding rotary(kModelDim / kHeads, attn::RotaryPairing::half_split);
  attn::KeyValueCache<float> cache(1, kHeads, kCapacity, kModelDim / kHeads);

  attn::Tensor4Buffer<float> text({1, 1, kText, kModelDim}), out({1, 1, 1, kModelDim});
  for (Index i = 0; i < text.size(); ++i)
    text.data()[i] = std::sin(static_cast<float>(i * i % 977));

  std::vector<Index> left;  // which tokens of the text the cache holds
  for (Index t = 0; t < kText; ++t) {
    if (cache.length(0) == kCapacity) {
      std::vector<Index> kept(kFirst + (kCapacity - kFirst) / 2);
      std::iota(kept.begin(), kept.begin() + kFirst, Index{0});
      std::iota(kept.begin() + kFirst, kept.end(), kCapacity - (kCapacity - kFirst) / 2);
      cache.keep_tokens(0, kept, rotary);
      for (std::size_t i = 0; i < kept.size(); ++i)
        left[i] = left[static_cast<std::size_t>(kept[i])];
      left.resize(kept.size());
      std::printf("token %3td: %td tokens stay\n", t, cache.length(0));
    }
    layer.step(text.view().slice_length(t, 1), cache, out, attn::causal(), {}, &rotary);
    left.push_back(t);
  }

  // The same tokens without a cache.
  const Index length = cache.length(0);
  attn::Tensor4Buffer<float> rest({1, 1, length, kModelDim}), expected(rest.shape());
  for (Index i = 0; i < length; ++i) {
    std::copy_n(&text(0, 0, left[static_cast<std::size_t>(i)], 0), kModelDim, &rest(0, 0, i, 0));
  }
  layer.forward(rest, expected, attn::causal(), {}, {}, &rotary);
  float difference = 0;
  for (Index d = 0; d < kModelDim; ++d) {
    difference = (std::max)(difference, std::abs(out(0, 0, 0, d) - expected(0, 0, length - 1, d)));
  }
  std::printf("the last token, of %td that are left: differs by %.1e\n", length,
              static_cast<double>(difference));
  return difference < 1e-6f ? 0 : 1;
}

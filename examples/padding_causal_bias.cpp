// Padding, causality and a bias together: what a decoder with relative positions does with a padded
// batch. Masks are values, combined with &; a key must pass all of them, and biases add up.
#include <cmath>
#include <cstdio>
#include <vector>

#include "attn/attn.hpp"

int main() {
  constexpr attn::Index kBatch = 2, kHeads = 2, kLength = 6, kDim = 4;
  const attn::Shape4 shape{kBatch, kHeads, kLength, kDim};
  attn::Tensor4Buffer<float> q(shape), k(shape), v(shape);
  for (attn::Index i = 0; i < shape.size(); ++i) {
    q.data()[i] = std::sin(static_cast<float>(i));
    k.data()[i] = std::cos(static_cast<float>(3 * i));
    v.data()[i] = std::sin(static_cast<float>(5 * i + 1));
  }

  // Sequence 0 has six tokens, sequence 1 four and padding.
  const std::vector<attn::Index> lengths = {6, 4};
  // One bias a head, query and key, the same for all sequences: size 1 broadcasts.
  attn::Tensor4Buffer<float> bias({1, kHeads, kLength, kLength});
  for (attn::Index h = 0; h < kHeads; ++h) {
    for (attn::Index i = 0; i < kLength; ++i) {
      for (attn::Index j = 0; j < kLength; ++j) {
        bias(0, h, i, j) = -0.25f * static_cast<float>((h + 1) * std::abs(i - j));
      }
    }
  }

  const auto mask = attn::key_lengths(lengths) & attn::causal() & attn::add_bias(bias.view());
  const auto result = attn::scaled_dot_product_attention(q, k, v, mask, {}, attn::Want::weights);

  // The look inside tells what happened to one head, and what looks wrong.
  std::printf("%s", attn::inspect_attention(q, k, v, 1, 0, mask).to_string().c_str());

  bool right = true;
  for (attn::Index b = 0; b < kBatch; ++b) {
    for (attn::Index i = 0; i < kLength; ++i) {
      float sum = 0;
      for (attn::Index j = 0; j < kLength; ++j) {
        const float weight = result.weights(b, 0, i, j);
        const bool seen = j <= i && j < lengths[static_cast<std::size_t>(b)];
        right = right && (seen ? weight > 0 : weight == 0);
        sum += weight;
      }
      right = right && std::abs(sum - 1) < 1e-6f;
    }
  }
  std::printf("\nweights are 0 exactly where a key is padding or lies ahead: %s\n",
              right ? "yes" : "no");
  return right ? 0 : 1;
}

// Causal self-attention inside a model's own activations: one fused buffer of (batch, length,
// [q | k | v], heads, dim), as a projection writes it, read in place and answered in place.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "attn/attn.hpp"

constexpr attn::Index kBatch = 2, kLength = 9, kHeads = 3, kDim = 8;
constexpr attn::Index kWidth = kHeads * kDim;  // of one token's q, k, v or output

/// Attends `length` tokens of a batch entry, whose first activation is *qkv.
void attend(const float* qkv, float* out, attn::Index batch, attn::Index length) {
  const attn::Shape4 shape{batch, kHeads, length, kDim};
  const attn::Stride4 fused{kLength * 3 * kWidth, kDim, 3 * kWidth, 1};  // in elements
  const attn::Tensor4<const float> q(qkv, shape, fused), k(qkv + kWidth, shape, fused),
      v(qkv + 2 * kWidth, shape, fused);
  attn::scaled_dot_product_attention(q, k, v, attn::bshd(out, batch, length, kHeads, kDim),
                                     attn::causal());
}

int main() {
  std::vector<float> qkv(kBatch * kLength * 3 * kWidth), out(kBatch * kLength * kWidth);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(static_cast<float>(7 * i));
  attend(qkv.data(), out.data(), kBatch, kLength);

  // The first token sees itself alone: its output is its value.
  const bool alone = std::equal(&out[0], &out[kWidth], &qkv[2 * kWidth]);

  // No token sees a later one: five tokens give what the first five of nine gave.
  std::vector<float> prefix(5 * kWidth);
  attend(qkv.data(), prefix.data(), 1, 5);
  float largest = 0;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    largest = std::max(largest, std::abs(prefix[i] - out[i]));
  }

  std::printf("%td sequences of %td tokens, %td heads of %td, in (batch, length, heads, dim)\n",
              kBatch, kLength, kHeads, kDim);
  std::printf("token 0 returns its own value: %s\n", alone ? "yes" : "no");
  std::printf("5 tokens against the first 5 of %td: largest difference %.1e\n", kLength,
              static_cast<double>(largest));
  return alone && largest < 1e-6f ? 0 : 1;  // a few roundings of numbers below 1
}

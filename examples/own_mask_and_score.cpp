// A mask and a score function of one's own, as lambdas that the library inlines: several documents
// packed into one sequence, each attending to itself alone, with scores that fade with distance.
// (attn::same_segment is this mask, and skips the other documents; a lambda by itself skips
// nothing.)
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "attn/attn.hpp"

int main() {
  constexpr attn::Index kLength = 10, kDim = 4;
  const int document[kLength] = {0, 0, 0, 0, 1, 1, 1, 2, 2, 2};
  const attn::Shape4 shape{1, 2, kLength, kDim};
  attn::Tensor4Buffer<float> q(shape), k(shape), v(shape);
  for (attn::Index i = 0; i < shape.size(); ++i) {
    q.data()[i] = std::sin(static_cast<float>(i));
    k.data()[i] = std::cos(static_cast<float>(2 * i));
    v.data()[i] = std::sin(static_cast<float>(3 * i + 1));
  }

  const auto same_document =
      attn::keep_if([&](attn::ScorePosition at) { return document[at.query] == document[at.key]; });
  const auto fade = attn::modify_score([](auto score, attn::ScorePosition at) {
    const auto distance = static_cast<decltype(score)>(std::abs(at.query_position - at.key));
    return score / (1 + distance);
  });
  const auto packed =
      attn::scaled_dot_product_attention(q, k, v, same_document & fade, {}, attn::Want::weights);
  std::printf("weights of head 0, three documents in one sequence:\n\n");
  for (attn::Index i = 0; i < kLength; ++i) {
    std::printf("  document %d ", document[i]);
    for (attn::Index j = 0; j < kLength; ++j) {
      std::printf(" %.3f", static_cast<double>(packed.weights(0, 0, i, j)));
    }
    std::printf("\n");
  }

  // The same as attention over the middle document by itself.
  const auto part = [](const auto& tensor) { return tensor.view().slice_length(4, 3); };
  const auto alone = attn::scaled_dot_product_attention(part(q), part(k), part(v), fade);
  float largest = 0;
  for (attn::Index h = 0; h < 2; ++h) {
    const auto difference = part(packed.output).matrix(0, h) - alone.output.view().matrix(0, h);
    largest = std::max(largest, difference.cwiseAbs().maxCoeff());
  }
  std::printf("\ndocument 1 packed against document 1 alone: largest difference %.1e\n",
              static_cast<double>(largest));
  return largest < 1e-6f && packed.weights(0, 0, 0, 5) == 0 ? 0 : 1;
}

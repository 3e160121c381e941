// A mask of one's own that skips what it drops: chunked attention, as some long-context models use
// it in most layers. Tokens see those before them in their own chunk of the sequence.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "attn/attn.hpp"

namespace {

using attn::Index;

/// Key j is seen by the query at position p if both lie in the same chunk of `size` keys. A mask of
/// one's own answers what differs from attn::Mask; each answer is that of allows(), for many keys.
class SameChunk : public attn::Mask {
 public:
  explicit SameChunk(Index size) : size_(size) {}

  bool allows(const attn::ScorePosition& at) const {
    return chunk_of(at.key) == chunk_of(at.query_position);
  }
  /// Keys outside are neither read nor asked about.
  attn::KeyRange key_range(const attn::RowBlock& rows, Index key_length) const {
    return attn::KeyRange{0, key_length} & chunks(rows);
  }
  /// Tiles that are kept whole run no mask.
  attn::Cover cover(const attn::RowBlock& rows, attn::KeyRange keys) const {
    const attn::KeyRange seen = chunks(rows) & keys;
    if (seen.empty()) return attn::Cover::none;
    return seen.size() == keys.size() && chunks(rows).size() == size_ ? attn::Cover::all
                                                                      : attn::Cover::partial;
  }
  /// Drops from a tile that is kept in part. A is float or double.
  template <class A>
  void apply(const attn::ScoreTile<A>& tile) const {
    tile.for_each([&](A& score, const attn::ScorePosition& at) {
      if (!allows(at)) score = -std::numeric_limits<A>::infinity();
    });
  }
  /// It reads positions; a size must be positive.
  void declare(attn::MaskChecker& checker) const {
    if (size_ < 1) checker.raise_option("SameChunk takes a size of 1 or more");
    checker.use_position("SameChunk");
  }

 private:
  /// The keys of the chunks that these rows lie in.
  attn::KeyRange chunks(const attn::RowBlock& rows) const {
    return {chunk_of(rows.position_begin()) * size_,
            (chunk_of(rows.position_end() - 1) + 1) * size_};
  }
  /// A query may stand before the first key.
  Index chunk_of(Index position) const {
    return (position >= 0 ? position : position - size_ + 1) / size_;
  }

  Index size_;
};

}  // namespace

int main() {
  constexpr Index kLength = 12, kChunk = 4, kDim = 8;
  const attn::Shape4 shape{1, 2, kLength, kDim};
  attn::Tensor4Buffer<float> q(shape), k(shape), v(shape);
  for (Index i = 0; i < shape.size(); ++i) {
    q.data()[i] = std::sin(static_cast<float>(i));
    k.data()[i] = std::cos(static_cast<float>(2 * i));
    v.data()[i] = std::sin(static_cast<float>(3 * i + 1));
  }
  const auto chunked = attn::scaled_dot_product_attention(
      q, k, v, SameChunk(kChunk) & attn::causal(), {}, attn::Want::weights);
  std::printf("weights of head 0, chunks of %d tokens:\n\n", static_cast<int>(kChunk));
  for (Index i = 0; i < kLength; ++i) {
    for (Index j = 0; j < kLength; ++j) {
      std::printf(" %.3f", static_cast<double>(chunked.weights(0, 0, i, j)));
    }
    std::printf("\n");
  }

  // The same chunk by chunk.
  float largest = 0;
  for (Index first = 0; first < kLength; first += kChunk) {
    const auto part = [&](const auto& tensor) { return tensor.view().slice_length(first, kChunk); };
    const auto alone =
        attn::scaled_dot_product_attention(part(q), part(k), part(v), attn::causal());
    for (Index h = 0; h < 2; ++h) {
      const auto difference = part(chunked.output).matrix(0, h) - alone.output.view().matrix(0, h);
      largest = std::max(largest, difference.cwiseAbs().maxCoeff());
    }
  }
  std::printf("\nagainst each chunk alone: largest difference %.1e\n",
              static_cast<double>(largest));
  return largest < 1e-6f && chunked.weights(0, 0, 4, 3) == 0 ? 0 : 1;
}

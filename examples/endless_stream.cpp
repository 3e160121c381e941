// An endless stream with attention sinks: the cache keeps the first four tokens for ever and a
// window of the last ones. The model numbers positions within the cache, so that the first tokens
// always stand right before the window. No key is turned again: queries see the first tokens from
// where the cache ends, and the window from where the stream does, since its distances are the
// same.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attn/attn.hpp"

namespace {

using attn::Index;
using Buffer = attn::Tensor4Buffer<float>;

constexpr Index kHeads = 2, kDim = 32, kFirst = 4, kWindow = 60, kSteps = 500;

/// The projected token at `position` of the stream, before any turn.
void fill(Buffer& token, Index position, Index part) {
  for (Index i = 0; i < token.size(); ++i) {
    token.data()[i] = std::sin(static_cast<float>((position * 31 + i * 7 + part * 3) % 1009));
  }
}

struct Stream {
  attn::RotaryEmbedding rotary{kDim, attn::RotaryPairing::half_split};
  attn::RollingKeyValueCache<float> cache;
  Buffer q_first{{1, kHeads, 1, kDim}}, q_window{{1, kHeads, 1, kDim}};
  Buffer out_first{{1, kHeads, 1, kDim}}, out{{1, kHeads, 1, kDim}};
  Buffer lse_first{{1, kHeads, 1, 1}}, lse{{1, kHeads, 1, 1}};

  Stream() : cache(shape()) {}
  static attn::CacheShape shape() {
    attn::CacheShape shape;
    shape.num_kv_heads = kHeads;
    shape.head_dim = kDim;
    shape.window = kWindow;
    shape.first_tokens = kFirst;
    return shape;
  }

  /// Appends a token and attends to what the cache holds then; the result is in `out`.
  void step(Buffer& q, Buffer& k, Buffer& v) {
    const Index position = cache.length(0);
    rotary.apply(k, position);
    cache.append(k, v);
    std::copy_n(q.data(), q.size(), q_first.data());
    std::copy_n(q.data(), q.size(), q_window.data());
    rotary.apply(q_first, std::min(position, kFirst + kWindow - 1));
    rotary.apply(q_window, position);
    const Index first = std::min(kFirst, position + 1);
    attn::scaled_dot_product_attention(q_first, cache, out_first, attn::first_keys(first), {},
                                       {attn::Tensor4<float>(), lse_first.view()});
    attn::scaled_dot_product_attention(q_window, cache, out,
                                       attn::keys_between(first, attn::kUnlimited), {},
                                       {attn::Tensor4<float>(), lse.view()});
    attn::merge_attention(out, lse, out_first, lse_first, out, lse);
  }
};

/// The plain way: all tokens that the cache would hold, turned to their places in it.
struct Plain {
  attn::RotaryEmbedding rotary{kDim, attn::RotaryPairing::half_split};
  std::vector<Buffer> keys, values;

  Buffer step(Buffer& q, const Buffer& k, const Buffer& v) {
    keys.push_back(k);
    values.push_back(v);
    if (static_cast<Index>(keys.size()) > kFirst + kWindow) {
      keys.erase(keys.begin() + kFirst);
      values.erase(values.begin() + kFirst);
    }
    const Index held = static_cast<Index>(keys.size());
    Buffer all_keys({1, kHeads, held, kDim}), all_values({1, kHeads, held, kDim});
    for (Index i = 0; i < held; ++i) {
      for (Index h = 0; h < kHeads; ++h) {
        const std::size_t token = static_cast<std::size_t>(i);
        std::copy_n(&keys[token](0, h, 0, 0), kDim, &all_keys(0, h, i, 0));
        std::copy_n(&values[token](0, h, 0, 0), kDim, &all_values(0, h, i, 0));
      }
    }
    rotary.apply(all_keys, 0);
    rotary.apply(q, held - 1);
    return attn::scaled_dot_product_attention(q, all_keys, all_values).output;
  }
};

}  // namespace

int main() {
  Stream stream;
  Plain plain;
  Buffer q({1, kHeads, 1, kDim}), k(q.shape()), v(q.shape());
  float difference = 0;
  for (Index position = 0; position < kSteps; ++position) {
    fill(q, position, 0);
    fill(k, position, 1);
    fill(v, position, 2);
    Buffer plain_q = q;
    const Buffer expected = plain.step(plain_q, k, v);
    stream.step(q, k, v);
    for (Index i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, std::abs(stream.out.data()[i] - expected.data()[i]));
    }
  }
  std::printf(
      "%td tokens, of which the cache holds %td; it differs by %.1e from turning them all\n",
      stream.cache.length(0), stream.cache.num_held(0), static_cast<double>(difference));
  // Scores of up to 32 / sqrt(32), each with the rounding of turned elements.
  return difference < 1e-5f ? EXIT_SUCCESS : EXIT_FAILURE;
}

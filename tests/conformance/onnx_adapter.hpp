// tests/conformance/onnx_adapter.hpp - ONNX's Attention (opsets 23 to 25) and RotaryEmbedding in
// terms of attn.
//
// The rule that is followed for Attention, from the operator's text and reference in onnx 1.23.2:
//
//   positions   Query i stands at i + offset. offset is the length of past_key; without a past but
//               with nonpad_kv_seqlen it is nonpad_kv_seqlen[b] - Sq; otherwise 0. It serves
//               is_causal and both windows alike (attn's own default, Sk - Sq, is never used).
//   windows     left_window_size and right_window_size count keys beside the query's own; -1 leaves
//               a side open.
//   keys        past and new keys, one after the other. The first nonpad_kv_seqlen[b] are valid.
//   attn_mask   Aligned at the last axis, so rank 3 is (heads, Sq, Sk). A boolean true may attend;
//   a
//               number is added. An axis of 1 broadcasts, but not the last one: a mask with fewer
//               keys than there are blocks the keys that it lacks.
//   order       scale, softcap, mask, softmax, as in attn.
//   empty row   Zeros in the output and in the weights, as in attn.
//
// softmax_precision is not followed: attn accumulates in float or double and rounds once.
//
// RotaryEmbedding is given its cosines and sines: [positions, rotary_dim / 2] with position_ids, or
// else a row for each token of each batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attn/attn.hpp"
#include "attn/inspect.hpp"
#include "attn/layers/rotary.hpp"
#include "conformance/case_file.hpp"

namespace attn {
namespace test {

/// attn_mask: either `keep` or `bias` holds its elements.
template <class T>
struct OnnxMask {
  std::vector<Index> shape;
  std::vector<std::uint8_t> keep;
  std::vector<T> bias;
};

/// What the fourth output holds.
enum class OnnxScores { raw = 0, after_softcap = 1, after_mask = 2, after_softmax = 3 };

/// The inputs and attributes; q, k and v are views of tensors of rank 3 or 4.
template <class T>
struct OnnxAttention {
  Tensor4<const T> q, k, v, past_key, past_value;
  OnnxMask<T> mask;
  std::vector<std::int64_t> nonpad_kv_seqlen;
  bool is_causal = false;
  Index left_window_size = -1, right_window_size = -1;
  std::optional<double> scale;
  double softcap = 0;
  OnnxScores scores = OnnxScores::raw;
};

template <class T>
struct OnnxResult {
  Tensor4Buffer<T> y, present_key, present_value;
  Tensor4Buffer<AccumulationType<T>> scores;
};

/// The past, then the new tokens.
template <class T>
Tensor4Buffer<T> concatenate(Tensor4<const T> past, Tensor4<const T> tokens) {
  Shape4 shape = tokens.shape();
  shape.length += past.length();
  Tensor4Buffer<T> result(shape);
  for_each_index(shape, [&](Index b, Index h, Index i, Index d) {
    result(b, h, i, d) = i < past.length() ? past(b, h, i, d) : tokens(b, h, i - past.length(), d);
  });
  return result;
}

/// The elements of a mask whose last axis is shorter than the keys, filled up with `blocked`.
template <class E>
std::vector<E> pad_keys(const std::vector<E>& elements, Index given, Index keys, E blocked) {
  std::vector<E> result;
  for (std::size_t begin = 0; begin < elements.size(); begin += static_cast<std::size_t>(given)) {
    const auto row = elements.begin() + static_cast<std::ptrdiff_t>(begin);
    result.insert(result.end(), row, row + given);
    result.insert(result.end(), static_cast<std::size_t>(keys - given), blocked);
  }
  return result;
}

/// The step that the fourth output shows.
template <class A>
const Tensor4Buffer<A>& onnx_scores(const AttentionInspection<A>& look, OnnxScores scores) {
  switch (scores) {
    case OnnxScores::raw:
      return look.scaled.values;
    case OnnxScores::after_softcap:
      return look.softcapped.values;
    case OnnxScores::after_mask:
      return look.masked.values;
    case OnnxScores::after_softmax:
      break;
  }
  return look.weights.values;
}

template <class T>
OnnxResult<T> onnx_attention(const OnnxAttention<T>& call) {
  using A = AccumulationType<T>;
  OnnxResult<T> result;
  result.present_key = concatenate(call.past_key, call.k);
  result.present_value = concatenate(call.past_value, call.v);
  const Tensor4Buffer<T>&k = result.present_key, &v = result.present_value;
  const Index batch = call.q.batch(), queries = call.q.length(), keys = k.shape().length;
  const Shape4 scores{batch, call.q.heads(), queries, keys};

  std::vector<std::int64_t> offset(static_cast<std::size_t>(batch), call.past_key.length());
  if (call.past_key.data() == nullptr && !call.nonpad_kv_seqlen.empty()) {
    offset = call.nonpad_kv_seqlen;
    for (std::int64_t& position : offset) position -= queries;
  }

  AnyMask mask;
  if (!call.nonpad_kv_seqlen.empty()) mask = mask & key_lengths(call.nonpad_kv_seqlen);
  if (call.is_causal) mask = mask & causal();
  if (call.left_window_size >= 0 || call.right_window_size >= 0) {
    const auto side = [](Index size) { return size < 0 ? kUnlimited : size; };
    mask = mask & sliding_window(side(call.left_window_size), side(call.right_window_size));
  }
  std::vector<std::uint8_t> keep;
  std::vector<T> bias;
  if (!call.mask.shape.empty()) {
    Shape4 shape = right_aligned(call.mask.shape);
    keep = pad_keys(call.mask.keep, shape.dim, keys, std::uint8_t{0});
    bias = pad_keys(call.mask.bias, shape.dim, keys, -infinity<T>());
    shape.dim = keys;
    if (!keep.empty()) mask = mask & keep_where(bhsd(keep.data(), shape));
    if (!bias.empty()) mask = mask & add_bias(bhsd(bias.data(), shape));
  }

  AttentionOptions options;
  options.scale = call.scale;
  options.softcap = call.softcap;
  options.query_offset = PerBatch(offset);
  result.y = Tensor4Buffer<T>({batch, scores.heads, queries, v.shape().dim});
  result.scores = Tensor4Buffer<A>(scores);
  scaled_dot_product_attention(call.q, k.view(), v.view(), result.y.view(), mask, options);

  for_each_index({batch, scores.heads, 1, 1}, [&](Index b, Index h, Index, Index) {
    const AttentionInspection<A> look =
        inspect_attention(call.q, k.view(), v.view(), b, h, mask, options);
    const Tensor4Buffer<A>& step = onnx_scores(look, call.scores);
    for_each_index(step.shape(), [&](Index, Index, Index i, Index j) {
      result.scores(b, h, i, j) = step(0, 0, i, j);
    });
  });
  return result;
}

/// The inputs and attributes of RotaryEmbedding; x is turned in place.
template <class T>
struct OnnxRotary {
  Tensor4<T> x;
  Tensor4<const T> cos_cache, sin_cache;  // [1, 1, positions, pairs], or else [B, 1, S, pairs]
  bool is_interleaved = false;
  std::vector<std::int64_t> position_ids;  // [B, S], or none
};

template <class T>
void onnx_rotary_embedding(const OnnxRotary<T>& call) {
  const auto embedding = [&](const Tensor4<const T>& cosines, const Tensor4<const T>& sines) {
    return RotaryEmbedding::from_tables(
        call.x.dim(), call.is_interleaved ? RotaryPairing::interleaved : RotaryPairing::half_split,
        cosines, sines);
  };
  const Index batch = call.x.batch(), length = call.x.length();
  if (!call.position_ids.empty()) {
    embedding(call.cos_cache, call.sin_cache)
        .apply(call.x, bsd<const std::int64_t>(call.position_ids.data(), batch, length, 1));
    return;
  }
  for (Index b = 0; b < batch; ++b) {
    embedding(call.cos_cache.slice_batch(b, 1), call.sin_cache.slice_batch(b, 1))
        .apply(call.x.slice_batch(b, 1), 0);
  }
}

}  // namespace test
}  // namespace attn

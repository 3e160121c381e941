// What masks, options and score functions add to one call of self-attention, and what repeating
// shared keys and values would cost.
#include <cmath>
#include <cstdint>

#include "bench.hpp"

namespace {

using bench::Index;
using bench::Problem;
using bench::Tensors;

constexpr Index kHeads = 8, kLength = 1024, kDim = 64;
constexpr Problem kSelf{kHeads, kHeads, kLength, kLength, kDim};

// ---- Masks and biases ---------------------------------------------------------------------------

/// `seen`: the share of pairs that the mask leaves.
template <class M>
void with_mask(benchmark::State& state, const M& mask, double seen = 1) {
  Problem problem = kSelf;
  problem.seen = seen;
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors, mask);
}
void with_options(benchmark::State& state, const attn::AttentionOptions& options) {
  Tensors<float> tensors(kSelf);
  bench::run(state, kSelf, tensors, attn::no_mask(), options);
}

void mask_none(benchmark::State& state) { with_mask(state, attn::no_mask()); }
void mask_causal(benchmark::State& state) {
  with_mask(state, attn::causal(), Problem::causal_share(kLength));
}
void mask_window_128(benchmark::State& state) {
  // Row i sees min(i + 1, 128) keys.
  with_mask(state, attn::sliding_window(127, 0), 128.0 * (kLength - 63.5) / (kLength * kLength));
}
void mask_key_lengths(benchmark::State& state) {
  with_mask(state, attn::key_lengths(3 * kLength / 4), 0.75);
}
void mask_keep_where(benchmark::State& state) {
  attn::Tensor4Buffer<std::uint8_t> keep({1, 1, kLength, kLength});
  for (Index i = 0; i < keep.size(); ++i) keep.data()[i] = i % 7 != 0;
  with_mask(state, attn::keep_where(keep.view()));
}
void mask_add_bias(benchmark::State& state) {
  attn::Tensor4Buffer<float> bias({1, kHeads, kLength, kLength});
  bench::fill(bias, 4);
  with_mask(state, attn::add_bias(bias.view()));
}
void mask_alibi(benchmark::State& state) { with_mask(state, attn::alibi()); }
void mask_keep_if(benchmark::State& state) {
  with_mask(state,
            attn::keep_if([](attn::ScorePosition at) { return (at.query ^ at.key) % 7 != 0; }));
}
void mask_modify_score(benchmark::State& state) {
  with_mask(state, attn::modify_score([](auto score, attn::ScorePosition at) {
              return score + static_cast<decltype(score)>(0.01) *
                                 static_cast<decltype(score)>(at.key - at.query);
            }));
}
void option_softcap(benchmark::State& state) {
  attn::AttentionOptions options;
  options.softcap = 30;
  with_options(state, options);
}
void option_dropout(benchmark::State& state) {
  attn::AttentionOptions options;
  options.dropout.probability = 0.1;
  with_options(state, options);
}
void option_weights(benchmark::State& state) {
  Tensors<float> tensors(kSelf);
  attn::Tensor4Buffer<float> weights({1, kHeads, kLength, kLength});
  for (auto _ : state) {
    attn::scaled_dot_product_attention(tensors.q, tensors.k, tensors.v, tensors.out,
                                       attn::no_mask(), {}, {weights.view(), {}});
    benchmark::ClobberMemory();
  }
  bench::report(state, kSelf);
}

BENCHMARK(mask_none)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_causal)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_window_128)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_key_lengths)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_keep_where)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_add_bias)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_alibi)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_keep_if)->Unit(benchmark::kMillisecond);
BENCHMARK(mask_modify_score)->Unit(benchmark::kMillisecond);
BENCHMARK(option_softcap)->Unit(benchmark::kMillisecond);
BENCHMARK(option_dropout)->Unit(benchmark::kMillisecond);
BENCHMARK(option_weights)->Unit(benchmark::kMillisecond);

// ---- Masks that skip what they drop, each behind what it is held against ------------------------

/// `seen` pairs of the call's.
template <class M>
void skipping(benchmark::State& state, Problem problem, const M& mask, double seen) {
  problem.seen = seen / (static_cast<double>(problem.queries) * static_cast<double>(problem.keys));
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors, mask);
}
Problem self(Index heads, Index length) { return {heads, heads, length, length, kDim}; }
Problem decode(Index length) { return {kHeads, kHeads, 1, length, kDim}; }
double window_pairs(Index length, Index window) {
  return static_cast<double>(window) *
         (static_cast<double>(length) - 0.5 * static_cast<double>(window - 1));
}
double causal_pairs(Index length) {
  return 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
}

void skips_window_1024(benchmark::State& state) {
  skipping(state, self(1, 16384), attn::sliding_window(1023, 0), window_pairs(16384, 1024));
}
void skips_first_4_or_window_1024(benchmark::State& state) {
  skipping(state, self(1, 16384), attn::first_keys(4) | attn::sliding_window(1023, 0),
           window_pairs(16384, 1024) + 4 * (16384 - 1024));
}
void skips_window_128(benchmark::State& state) {
  skipping(state, self(2, 8192), attn::sliding_window(127, 0), window_pairs(8192, 128));
}
void skips_first_8_or_window_128(benchmark::State& state) {
  skipping(state, self(2, 8192), attn::first_keys(8) | attn::sliding_window(127, 0),
           window_pairs(8192, 128) + 8 * (8192 - 128));
}
void skips_causal_2048(benchmark::State& state) {
  skipping(state, self(4, 2048), attn::causal(), causal_pairs(2048));
}
void skips_causal_or_first_128(benchmark::State& state) {
  skipping(state, self(4, 2048), attn::causal() | attn::first_keys(128),
           causal_pairs(2048) + 128 * 127 / 2);
}
/// Images of 256 tokens, each after 144 of text: 5 of them.
void skips_causal_or_images(benchmark::State& state) {
  attn::Tensor4Buffer<std::int32_t> images({1, 1, 2048, 1});
  for (Index i = 0; i < 2048; ++i) {
    const bool is_text = i % 400 < 144 || i >= 2000;
    images(0, 0, i, 0) = is_text ? -1 : static_cast<std::int32_t>(i / 400);
  }
  skipping(state, self(4, 2048), attn::causal() | attn::same_segment(images),
           causal_pairs(2048) + 5 * 256 * 255 / 2);
}
void skips_four_calls_of_512(benchmark::State& state) {
  Problem problem = self(4, 2048);
  problem.seen = 0.25;
  Tensors<float> tensors(problem);
  for (auto _ : state) {
    for (Index i = 0; i < 2048; i += 512) {
      const auto part = [i](auto& tensor) { return tensor.view().slice_length(i, 512); };
      attn::scaled_dot_product_attention(part(tensors.q), part(tensors.k), part(tensors.v),
                                         part(tensors.out));
    }
    benchmark::ClobberMemory();
  }
  bench::report(state, problem);
}
void skips_four_segments_of_512(benchmark::State& state) {
  attn::Tensor4Buffer<std::int32_t> documents({1, 1, 2048, 1});
  for (Index i = 0; i < 2048; ++i) documents(0, 0, i, 0) = static_cast<std::int32_t>(i / 512);
  skipping(state, self(4, 2048), attn::same_segment(documents), 4 * 512 * 512);
}
void skips_padding_right(benchmark::State& state) {
  skipping(state, self(4, 2048), attn::key_lengths(512), 2048 * 512);
}
void skips_padding_left(benchmark::State& state) {
  skipping(state, self(4, 2048), attn::keys_between(1536, attn::kUnlimited), 2048 * 512);
}
void skips_padding_right_decode(benchmark::State& state) {
  skipping(state, decode(2048), attn::key_lengths(512), 512);
}
void skips_padding_left_decode(benchmark::State& state) {
  skipping(state, decode(2048), attn::keys_between(1536, attn::kUnlimited), 512);
}
BENCHMARK(skips_window_1024)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_first_4_or_window_1024)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_window_128)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_first_8_or_window_128)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_causal_2048)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_causal_or_first_128)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_causal_or_images)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_four_calls_of_512)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_four_segments_of_512)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_padding_right)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_padding_left)->Unit(benchmark::kMillisecond);
BENCHMARK(skips_padding_right_decode)->Unit(benchmark::kMicrosecond);
BENCHMARK(skips_padding_left_decode)->Unit(benchmark::kMicrosecond);

// ---- Dot product, cosine and Euclidean distance as scores ---------------------------------------

using Rows = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, kDim, Eigen::RowMajor>>;
Rows rows_of(attn::Tensor4Buffer<float>& tensor) {
  return Rows(tensor.data(), tensor.size() / kDim, kDim);
}

void score_dot_product(benchmark::State& state) {
  Tensors<float> tensors(kSelf);
  bench::run(state, kSelf, tensors);
}
/// cos(q, k) / temperature: rows of length 1, made anew in each call as q and k are.
void score_cosine(benchmark::State& state) {
  Tensors<float> tensors(kSelf);
  attn::Tensor4Buffer<float> q(tensors.q.shape()), k(tensors.k.shape());
  attn::AttentionOptions options;
  options.scale = 10;
  for (auto _ : state) {
    rows_of(q) = rows_of(tensors.q).rowwise().normalized();
    rows_of(k) = rows_of(tensors.k).rowwise().normalized();
    attn::scaled_dot_product_attention(q, k, tensors.v, tensors.out, attn::no_mask(), options);
    benchmark::ClobberMemory();
  }
  bench::report(state, kSelf);
}
/// -|q - k|^2 = 2 q . k - |k|^2 - |q|^2, of which softmax ignores the last.
void score_euclidean(benchmark::State& state) {
  Tensors<float> tensors(kSelf);
  attn::Tensor4Buffer<float> bias({1, kHeads, 1, kLength});
  attn::AttentionOptions options;
  options.scale = 2;
  for (auto _ : state) {
    Eigen::Map<Eigen::VectorXf>(bias.data(), bias.size()) =
        -rows_of(tensors.k).rowwise().squaredNorm();
    attn::scaled_dot_product_attention(tensors.q, tensors.k, tensors.v, tensors.out,
                                       attn::add_bias(bias.view()), options);
    benchmark::ClobberMemory();
  }
  bench::report(state, kSelf);
}
BENCHMARK(score_dot_product)->Unit(benchmark::kMillisecond);
BENCHMARK(score_cosine)->Unit(benchmark::kMillisecond);
BENCHMARK(score_euclidean)->Unit(benchmark::kMillisecond);

// ---- One key and value head for 16 query heads: shared, or repeated for each --------------------

Problem multi_query(const benchmark::State& state) { return {16, 1, state.range(0), 4096, kDim}; }
void kv_shared(benchmark::State& state) {
  const Problem problem = multi_query(state);
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors);
}
void kv_repeated(benchmark::State& state) {
  const Problem problem = multi_query(state);
  Tensors<float> tensors(problem);
  attn::Tensor4Buffer<float> k({1, problem.heads, problem.keys, kDim}), v(k.shape());
  for (auto _ : state) {
    for (Index h = 0; h < problem.heads; ++h) {
      std::copy_n(tensors.k.data(), tensors.k.size(), k.data() + h * tensors.k.size());
      std::copy_n(tensors.v.data(), tensors.v.size(), v.data() + h * tensors.v.size());
    }
    attn::scaled_dot_product_attention(tensors.q, k, v, tensors.out);
    benchmark::ClobberMemory();
  }
  bench::report(state, problem);
}
BENCHMARK(kv_shared)->ArgName("queries")->Arg(1)->Arg(16)->Arg(256)->Unit(benchmark::kMillisecond);
BENCHMARK(kv_repeated)
    ->ArgName("queries")
    ->Arg(1)
    ->Arg(16)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond);

}  // namespace

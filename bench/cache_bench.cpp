// Decoding: one query over the tokens of a cache, contiguous, rolling and paged, against a plain
// read of the same keys and values in the same run.
#include <benchmark/benchmark.h>

#include <cstdint>

#include "attn/attn.hpp"
#include "bench.hpp"

namespace {

using attn::Index;
using bench::Problem;

constexpr Index kHeads = 32, kDim = 128;

Problem problem(const benchmark::State& state) {
  return {kHeads, state.range(0), 1, state.range(1), kDim, 1};
}

void decode_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"kv_heads", "keys"})->Unit(benchmark::kMicrosecond);
  for (const Index kv_heads : {32, 8, 1}) {
    for (const Index keys : {1024, 4096, 16384, 65536}) benchmark->Args({kv_heads, keys});
  }
}

void paged_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"kv_heads", "keys", "page"})->Unit(benchmark::kMicrosecond);
  for (const Index kv_heads : {32, 8, 1}) {
    for (const Index keys : {1024, 4096, 16384, 65536}) benchmark->Args({kv_heads, keys, 64});
    for (const Index page : {16, 256}) benchmark->Args({kv_heads, 16384, page});
  }
}

/// Feeds `keys` tokens, 256 at a time.
template <class Cache>
void feed(Cache& cache, Index keys) {
  attn::Tensor4Buffer<float> tokens({1, cache.num_kv_heads(), 256, cache.head_dim()});
  for (Index first = 0; first < keys; first += tokens.shape().length) {
    bench::fill(tokens, static_cast<std::uint32_t>(first + 1));
    cache.append(tokens, tokens);
  }
}

template <class Cache>
void decode(benchmark::State& state, const Problem& p, const Cache& cache) {
  attn::Tensor4Buffer<float> q({cache.batch(), p.heads, 1, p.dim}), out(q.shape());
  bench::fill(q, 1);
  for (auto _ : state) {
    attn::scaled_dot_product_attention(q, cache, out, attn::causal());
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  bench::report(state, p);
}

void decode_contiguous(benchmark::State& state) {
  const Problem p = problem(state);
  attn::KeyValueCache<float> cache(1, p.kv_heads, p.keys, p.dim);
  feed(cache, p.keys);
  decode(state, p, cache);
}
BENCHMARK(decode_contiguous)->Apply(decode_sizes);

/// Every second page of a pool: neighbours lie apart.
void decode_paged(benchmark::State& state) {
  const Problem p = problem(state);
  const Index page_length = state.range(2), pages = p.keys / page_length;
  attn::PagedKeyValueCache<float> cache(2 * pages, page_length, 2, p.kv_heads, p.dim);
  attn::Tensor4Buffer<float> tokens({2, p.kv_heads, page_length, p.dim});
  for (Index page = 0; page < pages; ++page) {
    bench::fill(tokens, static_cast<std::uint32_t>(page + 1));
    cache.append(tokens, tokens);
  }
  cache.reset(1);  // costs nothing from now on
  decode(state, p, cache);
}
BENCHMARK(decode_paged)->Apply(paged_sizes);

/// A window of `keys` tokens that has gone round once and a half.
void decode_rolling(benchmark::State& state) {
  const Problem p = problem(state);
  attn::RollingKeyValueCache<float> cache(1, p.kv_heads, p.keys, p.dim, p.dim, 256);
  feed(cache, p.keys * 5 / 2);
  decode(state, p, cache);
}
BENCHMARK(decode_rolling)->Apply(decode_sizes);

/// The same bytes, added up in as many sums as keep the loads coming.
void read_keys_and_values(benchmark::State& state) {
  const Problem p = problem(state);
  attn::Tensor4Buffer<float> k({1, p.kv_heads, p.keys, p.dim}), v(k.shape());
  bench::fill(k, 1);
  bench::fill(v, 2);
  using Lines = Eigen::Array<float, 256, 1>;
  for (auto _ : state) {
    Lines sums = Lines::Zero();
    for (const attn::Tensor4Buffer<float>* tensor : {&k, &v}) {
      for (Index i = 0; i < tensor->size(); i += 256) {
        sums += Eigen::Map<const Lines>(tensor->data() + i);
      }
    }
    benchmark::DoNotOptimize(sums.data());
    benchmark::ClobberMemory();
  }
  bench::report(state, p);
}
BENCHMARK(read_keys_and_values)->Apply(decode_sizes);

}  // namespace

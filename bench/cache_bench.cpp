// Decoding: one query over the tokens of a cache, contiguous, rolling and paged, against a plain
// read of the same keys and values in the same run. Beams that take their parents' tokens, against
// the copies that they need.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attn/attn.hpp"
#include "bench.hpp"

namespace {

using attn::Index;
using attn::Shape4;
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

// Eight beams of `tokens` tokens.

constexpr Index kBeams = 8;

struct Parents {
  const char* name;
  Index of[kBeams];
  Index copies;  ///< sequences that must be written
};
const Parents kParents[] = {
    {"one goes on", {3, 3, 3, 3, 3, 3, 3, 3}, 7},
    {"some go on", {0, 0, 2, 2, 2, 5, 5, 0}, 5},
    {"two swap", {1, 0, 2, 3, 4, 5, 6, 7}, 2},
    {"ring", {1, 2, 3, 4, 5, 6, 7, 0}, 8},
};

void reorder_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"parents", "kv_heads", "tokens"})->Unit(benchmark::kMicrosecond);
  for (const Index parents : {0, 1, 2, 3}) {
    for (const Index tokens : {128, 1024, 4096}) benchmark->Args({parents, 8, tokens});
  }
}

const Parents& parents_of(benchmark::State& state) {
  const Parents& parents = kParents[state.range(0)];
  state.SetLabel(parents.name);
  return parents;
}

void reorder_contiguous(benchmark::State& state) {
  const Parents& parents = parents_of(state);
  const Index tokens = state.range(2);
  attn::KeyValueCache<float> cache(kBeams, state.range(1), tokens, kDim);
  attn::Tensor4Buffer<float> new_tokens({kBeams, state.range(1), tokens, kDim});
  bench::fill(new_tokens, 1);
  cache.append(new_tokens, new_tokens);
  for (auto _ : state) {
    cache.reorder(attn::Span<const Index>(parents.of));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(reorder_contiguous)->Apply(reorder_sizes);

void reorder_paged(benchmark::State& state) {
  const Parents& parents = parents_of(state);
  const Index tokens = state.range(2);
  attn::PagedKeyValueCache<float> cache(kBeams * tokens / 16, 16, kBeams, state.range(1), kDim);
  attn::Tensor4Buffer<float> new_tokens({kBeams, state.range(1), tokens, kDim});
  bench::fill(new_tokens, 1);
  cache.append(new_tokens, new_tokens);
  for (auto _ : state) {
    cache.reorder(attn::Span<const Index>(parents.of));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(reorder_paged)->Apply(reorder_sizes);

/// One memcpy for the keys and one for the values of each sequence that must be written, each into
/// memory of its own.
void copy_parents(benchmark::State& state) {
  const Parents& parents = parents_of(state);
  const Shape4 shape{kBeams, state.range(1), state.range(2), kDim};
  attn::Tensor4Buffer<float> keys(shape), values(shape), new_keys(shape), new_values(shape);
  for (attn::Tensor4Buffer<float>* tensor : {&keys, &values, &new_keys, &new_values}) {
    bench::fill(*tensor, 1);
  }
  const Index size = shape.size() / kBeams;
  for (auto _ : state) {
    for (Index b = 0, copies = 0; copies < parents.copies; ++b) {
      const Index from = parents.of[b];
      if (from == b) continue;
      const auto copy = [&](attn::Tensor4Buffer<float>& all, attn::Tensor4Buffer<float>& copied) {
        std::memcpy(copied.data() + b * size, all.data() + from * size,
                    static_cast<std::size_t>(size) * sizeof(float));
      };
      copy(keys, new_keys);
      copy(values, new_values);
      ++copies;
    }
    benchmark::ClobberMemory();
  }
}
BENCHMARK(copy_parents)->Apply(reorder_sizes);

}  // namespace

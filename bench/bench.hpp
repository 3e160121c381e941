// bench/bench.hpp - what the benchmarks share: problems, their cost formulas, filled tensors.
#pragma once

#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <cstdint>
#include <fstream>
#include <string>

#include "attn/attn.hpp"

namespace bench {

using attn::Index;

/// One call of attention.
struct Problem {
  Index heads = 8, kv_heads = 8, queries = 1, keys = 1, dim = 64;
  double seen = 1;  ///< the share of (query, key) pairs that the mask leaves

  /// A multiplication and an addition for each element of q k^T and of weights * v.
  double flops() const {
    return 4 * seen * static_cast<double>(heads) * static_cast<double>(queries) *
           static_cast<double>(keys) * static_cast<double>(dim);
  }
  double kv_bytes(double element_size) const {
    return 2 * element_size * static_cast<double>(kv_heads * keys * dim);
  }
  /// Each of q, k, v and out once.
  double bytes(double element_size) const {
    return kv_bytes(element_size) + 2 * element_size * static_cast<double>(heads * queries * dim);
  }
  static double causal_share(Index length) { return 0.5 + 0.5 / static_cast<double>(length); }
};

/// Sets the counters, from these formulas alone.
inline void report(benchmark::State& state, const Problem& problem, double element_size = 4) {
  using benchmark::Counter;
  state.counters["FLOP/s"] = Counter(problem.flops(), Counter::kIsIterationInvariantRate);
  state.counters["bytes/s"] =
      Counter(problem.bytes(element_size), Counter::kIsIterationInvariantRate);
  state.counters["kv_bytes"] = Counter(problem.kv_bytes(element_size));
  state.counters["kv_of_mha"] =
      Counter(static_cast<double>(problem.kv_heads) / static_cast<double>(problem.heads));
}

/// Numbers between -1 and 1, the same in every run.
template <class T>
void fill(attn::Tensor4Buffer<T>& tensor, std::uint32_t seed) {
  for (Index i = 0; i < tensor.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;  // Numerical Recipes' generator
    tensor.data()[i] = T(static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
  }
}

template <class T>
struct Tensors {
  attn::Tensor4Buffer<T> q, k, v, out;

  explicit Tensors(const Problem& p)
      : q({1, p.heads, p.queries, p.dim}),
        k({1, p.kv_heads, p.keys, p.dim}),
        v(k.shape()),
        out(q.shape()) {
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
  }
};

/// Times one call of attention on `tensors`.
template <class T, class M = attn::NoMask>
void run(benchmark::State& state, const Problem& problem, Tensors<T>& tensors, const M& mask = M(),
         const attn::AttentionOptions& options = {}) {
  for (auto _ : state) {
    attn::scaled_dot_product_attention(tensors.q, tensors.k, tensors.v, tensors.out, mask, options);
    benchmark::DoNotOptimize(tensors.out.data());
    benchmark::ClobberMemory();
  }
  report(state, problem, sizeof(T));
}

inline std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

/// Facts that the JSON output carries, for plot.py.
inline const bool has_context = [] {
  benchmark::AddCustomContext("cpu", cpu_name());
#if defined(__clang__)
  benchmark::AddCustomContext("compiler", __VERSION__);
#else
  benchmark::AddCustomContext("compiler", "GCC " __VERSION__);
#endif
  benchmark::AddCustomContext("eigen", std::to_string(EIGEN_WORLD_VERSION) + "." +
                                           std::to_string(EIGEN_MAJOR_VERSION) + "." +
                                           std::to_string(EIGEN_MINOR_VERSION));
  return true;
}();

}  // namespace bench

// bench/fma_peak.hpp - what the CPU can do at most: multiply-adds that never leave registers. A
// share of peak is then a ratio of two numbers of one run.
#pragma once

#include "attn/attn.hpp"
#include "bench.hpp"

namespace bench {

constexpr Index kPeakRounds = 4096;
/// Enough chains to hide a latency of 5 cycles at 2 a cycle, and few enough for 16 registers.
constexpr int kPeakChains = 12;

// A macro: a template would be compiled with the instructions of the command line, not of `target`.
#define BENCH_PEAK_LOOP(name, target_text, bytes)                                         \
  [[gnu::noinline, gnu::target(target_text)]] inline float name(float seed) {             \
    typedef float Vector __attribute__((vector_size(bytes)));                             \
    const Vector factor = Vector{} + 0.999f, term = Vector{} + 0.001f;                    \
    Vector chain[kPeakChains];                                                            \
    for (int c = 0; c < kPeakChains; ++c) chain[c] = term * static_cast<float>(c) + seed; \
    for (Index round = 0; round < kPeakRounds; ++round) {                                 \
      _Pragma("GCC unroll 12") for (int c = 0; c < kPeakChains; ++c) {                    \
        chain[c] = chain[c] * factor + term;                                              \
      }                                                                                   \
    }                                                                                     \
    for (int c = 1; c < kPeakChains; ++c) chain[0] += chain[c];                           \
    return chain[0][0];                                                                   \
  }

#if defined(__x86_64__)
BENCH_PEAK_LOOP(sse2_peak_loop, "no-sse3", 16)  // no FMA: a multiplication, then an addition
BENCH_PEAK_LOOP(avx2_peak_loop, "avx2,fma", 32)
BENCH_PEAK_LOOP(avx512_peak_loop, "avx512f", 64)
#endif
#undef BENCH_PEAK_LOOP

inline void run_peak(benchmark::State& state, float (*loop)(float), Index lanes) {
  for (auto _ : state) benchmark::DoNotOptimize(loop(1.0f));
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(lanes * kPeakChains * kPeakRounds),
                         benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace bench

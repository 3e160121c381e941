// Each kernel by itself, on tiles as the driver hands them out, for every instruction set of the
// CPU: where the time of a call goes, and what is left to win.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/attn.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "bench.hpp"
#include "fma_peak.hpp"

namespace {

using attn::InstructionSet;
using bench::Index;
namespace detail = attn::detail;
using Floats = std::vector<float>;

constexpr Index kKeys = 128, kDim = 64;  // a tile of prefill

/// One instruction set: its tables, and the loop of multiply-adds that is its peak.
struct Set {
  const char* name;
  InstructionSet id;
  float (*peak)(float);
  Index lanes;

  const detail::KernelTable<float>& kernels() const { return detail::kernels<float>(id); }

  /// FLOP/s of the loop, now: the clock changes with the load.
  double peak_flops() const {
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const std::clock_t begin = std::clock();
      for (int k = 0; k < 20; ++k) benchmark::DoNotOptimize(peak(1.0f));
      const auto ticks = static_cast<double>(std::max<std::clock_t>(std::clock() - begin, 1));
      const auto flops = static_cast<double>(2 * 20 * lanes * bench::kPeakChains);
      best =
          std::max(best, flops * static_cast<double>(bench::kPeakRounds) * CLOCKS_PER_SEC / ticks);
    }
    return best;
  }
};

Floats numbers(Index size, std::uint32_t seed = 1) {
  attn::Tensor4Buffer<float> tensor({1, 1, 1, size});
  bench::fill(tensor, seed);
  return Floats(tensor.data(), tensor.data() + size);
}

/// Times call(), whose work is `flops` floating-point operations.
template <class Call>
void run_products(benchmark::State& state, const Set& set, Index flops, const Call& call) {
  const double before = set.peak_flops();
  const std::clock_t begin = std::clock();
  for (auto _ : state) {
    call();
    benchmark::ClobberMemory();
  }
  const auto ticks = static_cast<double>(std::max<std::clock_t>(std::clock() - begin, 1));
  const double done =
      static_cast<double>(flops) * static_cast<double>(state.iterations()) * CLOCKS_PER_SEC / ticks;
  state.counters["of_peak"] = done / std::max(before, set.peak_flops());
  state.counters["FLOP/s"] =
      benchmark::Counter(static_cast<double>(flops), benchmark::Counter::kIsIterationInvariantRate);
}

/// Times call(), which computes `elements` results: how many multiply-adds a lane could have done
/// for each of them meanwhile.
template <class Call>
void run_functions(benchmark::State& state, const Set& set, Index elements, const Call& call) {
  run_products(state, set, 2 * elements, call);
  state.counters["fma/element"] = 1 / state.counters["of_peak"];
  state.counters.erase("of_peak");
  state.counters.erase("FLOP/s");
  state.counters["elements/s"] = benchmark::Counter(static_cast<double>(elements),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

/// Times call(), which reads and writes `bytes` in all.
template <class Call>
void run_moves(benchmark::State& state, Index bytes, const Call& call) {
  for (auto _ : state) {
    call();
    benchmark::ClobberMemory();
  }
  state.counters["bytes/s"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
}

// ---- Row lanes ----------------------------------------------------------------------------------

std::vector<const void*> pointers_of(const Floats& rows, Index count, Index stride) {
  std::vector<const void*> pointers;
  for (Index j = 0; j < count; ++j) pointers.push_back(rows.data() + j * stride);
  return pointers;
}

/// `vectors` of rows: those of a full tile, or what a causal diagonal leaves.
void row_scores(benchmark::State& state, Set set, Index vectors) {
  const Index rows = vectors * set.lanes;
  const Floats keys = numbers(kKeys * kDim), queries = numbers(kDim * rows, 2);
  const auto pointers = pointers_of(keys, kKeys, kDim);
  Floats scores = numbers(kKeys * rows);
  run_products(state, set, 2 * kKeys * kDim * rows, [&] {
    set.kernels().row_scores(pointers.data(), kKeys, kDim, queries.data(), rows, rows, 0.125f,
                             scores.data(), rows, {});
  });
}
void row_accumulate(benchmark::State& state, Set set, Index vectors) {
  const Index rows = vectors * set.lanes;
  const Floats values = numbers(kKeys * kDim), weights = numbers(kKeys * rows, 2);
  const auto pointers = pointers_of(values, kKeys, kDim);
  Floats out = numbers(kDim * rows);
  run_products(state, set, 2 * kKeys * kDim * rows, [&] {
    set.kernels().row_accumulate(pointers.data(), kKeys, kDim, weights.data(), rows, rows, nullptr,
                                 out.data(), rows, {});
  });
}
/// The scores are copied anew each time, which takes a tenth of it.
void row_softmax(benchmark::State& state, Set set, Index vectors) {
  const Index rows = vectors * set.lanes;
  const Floats scores = numbers(kKeys * rows);
  Floats work = scores, sum(scores.size()), correction(scores.size());
  Floats max(scores.size(), 1.0f);
  run_functions(state, set, kKeys * rows, [&] {
    std::copy(scores.begin(), scores.end(), work.begin());
    set.kernels().row_softmax(work.data(), kKeys, rows, rows, max.data(), sum.data(),
                              correction.data());
  });
}
void row_divide(benchmark::State& state, Set set) {
  const Index rows = 3 * set.lanes;
  Floats out = numbers(kDim * rows);
  const Floats divisor(static_cast<std::size_t>(rows), 1.0f);
  run_moves(state, 2 * 4 * kDim * rows,
            [&] { set.kernels().row_divide(out.data(), kDim, rows, rows, divisor.data()); });
}

// ---- Dim lanes ----------------------------------------------------------------------------------

constexpr Index kFewKeys = 256, kFewDim = 128;  // in the second-level cache, in any type

template <class Bits>
const detail::FewRowKernels<float>& few_rows(const Set& set) {
  if constexpr (sizeof(Bits) == 4) {
    return *set.kernels().few_rows;
  } else {
    return detail::few_row_kernels<Bits>(set.id);
  }
}
/// Rows of numbers between -1 and 1; 16-bit ones have the bits of 1 and some of those behind it.
template <class Bits>
std::vector<Bits> stored_rows() {
  std::vector<Bits> rows(static_cast<std::size_t>(kFewKeys * kFewDim));
  const Floats source = numbers(kFewKeys * kFewDim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if constexpr (sizeof(Bits) == 4) {
      rows[i] = source[i];
    } else {
      rows[i].bits = static_cast<std::uint16_t>(0x3C00 + static_cast<int>(i % 64));
    }
  }
  return rows;
}

template <class Bits>
void dim_scores(benchmark::State& state, Set set, Index rows) {
  const auto keys = stored_rows<Bits>();
  const Floats queries = numbers(rows * kFewDim);
  Floats scores = numbers(rows * kFewKeys);
  const detail::RowRun run{keys.data(), kFewDim * Index{sizeof(Bits)}, kFewKeys, 0, 0};
  run_products(state, set, 2 * rows * kFewKeys * kFewDim, [&] {
    few_rows<Bits>(set).scores(run, kFewDim, queries.data(), kFewDim, rows, 0.125f, scores.data(),
                               kFewKeys);
  });
}
template <class Bits>
void dim_accumulate(benchmark::State& state, Set set, Index rows) {
  const auto values = stored_rows<Bits>();
  const Floats weights = numbers(rows * kFewKeys);
  Floats out = numbers(rows * kFewDim);
  const detail::RowRun run{values.data(), kFewDim * Index{sizeof(Bits)}, kFewKeys, 0, 0};
  run_products(state, set, 2 * rows * kFewKeys * kFewDim, [&] {
    few_rows<Bits>(set).accumulate(run, kFewDim, weights.data(), kFewKeys, rows, nullptr,
                                   out.data(), kFewDim);
  });
}
void dim_softmax(benchmark::State& state, Set set) {
  const Floats scores = numbers(kFewKeys);
  Floats work = scores;
  float max = 1, sum = 0, correction = 0;
  run_functions(state, set, kFewKeys, [&] {
    std::copy(scores.begin(), scores.end(), work.begin());
    set.kernels().dim_softmax(work.data(), kFewKeys, 1, kFewKeys, &max, &sum, &correction);
  });
}
void dim_weights(benchmark::State& state, Set set) {
  const Floats scores = numbers(kFewKeys);
  Floats work = scores;
  run_functions(state, set, kFewKeys, [&] {
    std::copy(scores.begin(), scores.end(), work.begin());
    set.kernels().dim_weights(work.data(), kFewKeys, 1, 3);
  });
}

// ---- Both forms, and 16-bit storage -------------------------------------------------------------

void softcap(benchmark::State& state, Set set) {
  Floats x = numbers(kKeys * 48);
  const Index size = kKeys * 48;
  run_functions(state, set, size, [&] { set.kernels().softcap(x.data(), 1, size, size, 30); });
}
void all_finite(benchmark::State& state, Set set) {
  const Floats x = numbers(kKeys * 48);
  const Index size = kKeys * 48;
  run_moves(state, 4 * size,
            [&] { benchmark::DoNotOptimize(set.kernels().all_finite(x.data(), 1, size, size)); });
}
void transpose(benchmark::State& state, Set set) {
  const Floats from = numbers(48 * kDim);
  Floats to = numbers(48 * kDim);
  run_moves(state, 2 * 4 * 48 * kDim,
            [&] { set.kernels().transpose(from.data(), kDim, 48, kDim, to.data(), 48); });
}
template <class Bits>
void widen(benchmark::State& state, Set set) {
  const auto from = stored_rows<Bits>();
  Floats to = numbers(kFewDim * 32);
  const detail::WidenTable& table = detail::widening(set.id);
  run_moves(state, 6 * kFewDim * 32, [&] {
    if constexpr (std::is_same_v<Bits, detail::HalfBits>) {
      table.half(from.data(), to.data(), kFewDim * 32);
    } else {
      table.bfloat16(from.data(), to.data(), kFewDim * 32);
    }
  });
}
void pair_bfloat16(benchmark::State& state, Set set) {
  const Floats from = numbers(kKeys * kDim);
  Floats to = from;
  run_moves(state, 6 * kKeys * kDim, [&] {
    detail::widening(set.id).pair_bfloat16(from.data(), kKeys, kDim, kDim, to.data(), kDim);
  });
}

// ---- Masks --------------------------------------------------------------------------------------

/// Lines of scores; `is_turned`: the mask lies across them, as a row-major one does in row lanes.
template <class Element, class Kernel>
void run_mask(benchmark::State& state, bool is_turned, const Kernel& kernel) {
  const Index lines = kKeys, count = 48;
  Floats scores = numbers(lines * count);
  const std::vector<Element> elements(scores.size(), Element(1));
  const detail::ScoreElements<Element> mask{elements.data(), is_turned ? 1 : count,
                                            is_turned ? lines : 1};
  run_moves(state, lines * count * (2 * 4 + Index{sizeof(Element)}),
            [&] { kernel(scores.data(), lines, count, mask); });
}
void keep_scores(benchmark::State& state, Set set, bool is_turned) {
  run_mask<unsigned char>(state, is_turned, [&](float* x, Index lines, Index count, auto& mask) {
    detail::mask_kernels<float>(set.id).keep_scores(x, lines, count, count, mask, true);
  });
}
void bias_scores(benchmark::State& state, Set set, bool is_turned) {
  run_mask<float>(state, is_turned, [&](float* x, Index lines, Index count, auto& bias) {
    detail::mask_kernels<float>(set.id).bias_scores(x, lines, count, count, bias, true);
  });
}
void slope_scores(benchmark::State& state, Set set) {
  Floats scores = numbers(kKeys * 48);
  run_moves(state, 2 * 4 * kKeys * 48, [&] {
    detail::mask_kernels<float>(set.id).slope_scores(scores.data(), kKeys, 48, 48, 5, 0.25f);
  });
}

const bool registered = [] {
  const auto add_set = [](const Set& set) {
    if (static_cast<int>(set.id) > static_cast<int>(attn::active_instruction_set())) return;
    const auto add = [&](const std::string& name, auto function, auto... arguments) {
      benchmark::RegisterBenchmark((std::string(set.name) + "/" + name).c_str(), function, set,
                                   arguments...);
    };
    for (const Index vectors : {1, 2, 3, 4}) {
      const std::string suffix = "/vectors:" + std::to_string(vectors);
      add("row_scores" + suffix, row_scores, vectors);
      add("row_accumulate" + suffix, row_accumulate, vectors);
      add("row_softmax" + suffix, row_softmax, vectors);
    }
    add("row_divide", row_divide);
    for (const Index rows : {1, 2, 4}) {
      const std::string suffix = "/rows:" + std::to_string(rows);
      add("dim_scores/float" + suffix, dim_scores<float>, rows);
      add("dim_scores/half" + suffix, dim_scores<detail::HalfBits>, rows);
      add("dim_scores/bfloat16" + suffix, dim_scores<detail::Bfloat16Bits>, rows);
      add("dim_accumulate/float" + suffix, dim_accumulate<float>, rows);
      add("dim_accumulate/half" + suffix, dim_accumulate<detail::HalfBits>, rows);
      add("dim_accumulate/bfloat16" + suffix, dim_accumulate<detail::Bfloat16Bits>, rows);
    }
    add("dim_softmax", dim_softmax);
    add("dim_weights", dim_weights);
    add("softcap", softcap);
    add("all_finite", all_finite);
    add("transpose", transpose);
    add("widen/half", widen<detail::HalfBits>);
    add("widen/bfloat16", widen<detail::Bfloat16Bits>);
    add("pair_bfloat16", pair_bfloat16);
    add("keep_scores", keep_scores, false);
    add("keep_scores/turned", keep_scores, true);
    add("bias_scores", bias_scores, false);
    add("bias_scores/turned", bias_scores, true);
    add("slope_scores", slope_scores);
  };
#if defined(__x86_64__)
  add_set({"sse2", InstructionSet::sse2, bench::sse2_peak_loop, 4});
  add_set({"avx2", InstructionSet::avx2, bench::avx2_peak_loop, 8});
  add_set({"avx512", InstructionSet::avx512, bench::avx512_peak_loop, 16});
#endif
  return true;
}();

}  // namespace

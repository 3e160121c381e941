// The kernel: against plain Eigen over sequence lengths, with few key and value heads, in each
// element type, with each instruction set. README.md in this folder says how to run it.
#include "bench.hpp"
#include "fma_peak.hpp"

namespace {

using bench::Index;
using bench::Problem;
using bench::Tensors;

constexpr Index kDim = 64;

// ---- Prefill over lengths -----------------------------------------------------------------------

Problem self_attention(const benchmark::State& state, bool is_causal) {
  const Index length = state.range(0);
  return {8, 8, length, length, kDim, is_causal ? Problem::causal_share(length) : 1};
}

void prefill(benchmark::State& state) {
  const Problem problem = self_attention(state, false);
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors);
}
void prefill_causal(benchmark::State& state) {
  const Problem problem = self_attention(state, true);
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors, attn::causal());
}

/// What one writes without a library: scores of all keys at once, softmax, product.
void prefill_eigen(benchmark::State& state) {
  const Problem problem = self_attention(state, false);
  Tensors<float> tensors(problem);
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto head_of = [&](attn::Tensor4Buffer<float>& tensor, Index head) {
    const Index rows = tensor.shape().length;
    return Eigen::Map<Matrix>(tensor.data() + head * rows * kDim, rows, kDim);
  };
  Matrix scores(problem.queries, problem.keys);
  for (auto _ : state) {
    for (Index head = 0; head < problem.heads; ++head) {
      scores.noalias() =
          head_of(tensors.q, head) * head_of(tensors.k, head).transpose() * (1.0f / 8.0f);
      scores.colwise() -= scores.rowwise().maxCoeff().eval();
      scores = scores.array().exp();
      scores.array().colwise() /= scores.rowwise().sum().array().eval();
      head_of(tensors.out, head).noalias() = scores * head_of(tensors.v, head);
    }
    benchmark::DoNotOptimize(tensors.out.data());
    benchmark::ClobberMemory();
  }
  bench::report(state, problem);
}

void lengths(benchmark::internal::Benchmark* b) {
  b->ArgName("length")->RangeMultiplier(2)->Range(128, 4096)->Unit(benchmark::kMillisecond);
}
BENCHMARK(prefill)->Apply(lengths);
BENCHMARK(prefill_causal)->Apply(lengths);
BENCHMARK(prefill_eigen)->Apply(lengths);

// ---- Key and value heads: 32 (MHA), 8 (GQA), 1 (MQA) --------------------------------------------

Problem shared_heads(Index kv_heads, Index queries, Index keys) {
  return {32, kv_heads, queries, keys, 128};
}
void heads_prefill(benchmark::State& state) {
  const Problem problem = shared_heads(state.range(0), state.range(1), state.range(1));
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors);
}
void heads_decode(benchmark::State& state) {
  const Problem problem = shared_heads(state.range(0), 1, state.range(1));
  Tensors<float> tensors(problem);
  bench::run(state, problem, tensors);
}
BENCHMARK(heads_prefill)
    ->ArgNames({"kv_heads", "keys"})
    ->ArgsProduct({{32, 8, 1}, {1024}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(heads_decode)
    ->ArgNames({"kv_heads", "keys"})
    ->ArgsProduct({{32, 8, 1}, {1024, 4096, 16384}})
    ->Unit(benchmark::kMillisecond);

// ---- Threads ------------------------------------------------------------------------------------

void threads(benchmark::State& state) {
  const Problem problem = shared_heads(8, state.range(0), state.range(1));
  Tensors<float> tensors(problem);
  attn::ThreadPool pool(static_cast<int>(state.range(2)));
  attn::AttentionOptions options;
  options.executor = &pool;
  bench::run(state, problem, tensors, attn::no_mask(), options);
}
BENCHMARK(threads)
    ->ArgNames({"queries", "keys", "threads"})
    ->ArgsProduct({{1024}, {1024}, {1, 2}})
    ->ArgsProduct({{1}, {16384}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// ---- Element types and instruction sets ---------------------------------------------------------

template <class T>
void types(benchmark::State& state) {
  const Index queries = state.range(0);
  const Problem problem{32, 8, queries, 4096, 128};
  Tensors<T> tensors(problem);
  bench::run(state, problem, tensors);
}
BENCHMARK_TEMPLATE(types, double)
    ->ArgName("queries")
    ->Arg(1)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(types, float)
    ->ArgName("queries")
    ->Arg(1)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(types, Eigen::half)
    ->ArgName("queries")
    ->Arg(1)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(types, Eigen::bfloat16)
    ->ArgName("queries")
    ->Arg(1)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond);

/// bfloat16 with weights that may be rounded: by the matrix unit, where the CPU has one.
void bf16_weights(benchmark::State& state) {
  const Index length = state.range(0);
  const bool is_causal = state.range(2) != 0;
  const Problem problem{
      8, 8, length, length, state.range(1), is_causal ? Problem::causal_share(length) : 1};
  Tensors<Eigen::bfloat16> tensors(problem);
  attn::AttentionOptions options;
  options.allow_bf16_weights = true;
  if (is_causal) {
    bench::run(state, problem, tensors, attn::causal(), options);
  } else {
    bench::run(state, problem, tensors, attn::no_mask(), options);
  }
  const auto* const unit = attn::detail::find_matrix_unit(options.instruction_set);
  state.SetLabel(unit != nullptr ? unit->name : "no matrix unit");
}
BENCHMARK(bf16_weights)
    ->ArgNames({"length", "dim", "causal"})
    ->ArgsProduct({{1024, 4096}, {64, 128}, {0, 1}})
    ->Unit(benchmark::kMillisecond);

void instruction_set(benchmark::State& state, attn::InstructionSet set) {
  const Problem problem{8, 8, 1024, 1024, kDim};
  Tensors<float> tensors(problem);
  attn::AttentionOptions options;
  options.instruction_set = set;
  bench::run(state, problem, tensors, attn::no_mask(), options);
}

/// Each set that this CPU has, beside its peak.
const bool registered = [] {
  using attn::InstructionSet;
  const auto add = [](const char* name, InstructionSet set, float (*loop)(float), Index lanes) {
    if (static_cast<int>(set) > static_cast<int>(attn::active_instruction_set())) return;
    const std::string suffix = std::string("/") + name;
    benchmark::RegisterBenchmark(("peak" + suffix).c_str(), bench::run_peak, loop, lanes);
    benchmark::RegisterBenchmark(("instruction_set" + suffix).c_str(), instruction_set, set)
        ->Unit(benchmark::kMillisecond);
  };
#if defined(__x86_64__)
  add("sse2", InstructionSet::sse2, bench::sse2_peak_loop, 4);
  add("avx2", InstructionSet::avx2, bench::avx2_peak_loop, 8);
  add("avx512", InstructionSet::avx512, bench::avx512_peak_loop, 16);
#endif
  return true;
}();

}  // namespace

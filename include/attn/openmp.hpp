// attn/openmp.hpp - level 2: an executor over OpenMP, for programs that are built with -fopenmp.
// Not part of attn.hpp: nothing else in the library looks at OpenMP.
#pragma once

#include <string>

#include "attn/config.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"

#if !defined(_OPENMP)
#error "attn/openmp.hpp needs OpenMP: compile with -fopenmp, or use attn::ThreadPool"
#endif

#include <omp.h>

namespace attn {

namespace detail {
inline namespace ATTN_BUILD {

inline void run_with_openmp(int threads, Index count, void (*task)(void* context, Index index),
                            void* context) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index i = 0; i < count; ++i) task(context, i);
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// Runs tasks in an OpenMP parallel region of its own; OpenMP's settings are not changed.
class OpenMpExecutor final : public Executor {
 public:
  /// 0: as many threads as OpenMP would use. Throws OptionError if threads < 0.
  ATTN_ALWAYS_INLINE explicit OpenMpExecutor(int threads = 0)
      : run_(&detail::run_with_openmp), threads_(threads) {
    if (threads < 0) {
      detail::raise_option_error(
          "OpenMpExecutor: threads must be 0 (as OpenMP would) or more, got " +
          std::to_string(threads));
    }
  }

  int concurrency() const override { return threads_ > 0 ? threads_ : omp_get_max_threads(); }

  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    run_(concurrency(), count, task, context);
  }

 private:
  // The linker keeps one body of each virtual function: this is the file's that made the executor.
  void (*run_)(int, Index, void (*task)(void*, Index), void*);
  int threads_;
};

}  // namespace attn

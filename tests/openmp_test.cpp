// Built with -fopenmp, unlike all other tests.
#include "attn/openmp.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include "support/executor_checks.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

TEST(OpenMpExecutor, RunsEachIndexOnce) {
  for (int threads = 0; threads <= 8; ++threads) {
    OpenMpExecutor executor(threads);
    test::expect_each_index_once(executor);
    test::expect_nesting_works(executor);
  }
}

TEST(OpenMpExecutor, ServesManyCallers) {
  OpenMpExecutor executor(3);
  test::expect_many_callers_work(executor);
}

TEST(OpenMpExecutor, CountsItsThreads) {
  EXPECT_EQ(OpenMpExecutor(5).concurrency(), 5);
  EXPECT_EQ(OpenMpExecutor().concurrency(), omp_get_max_threads());
  EXPECT_EQ(OpenMpExecutor(0).concurrency(), omp_get_max_threads());
}

TEST(OpenMpExecutor, ChangesNoSettingOfOpenMp) {
  const int max_threads = omp_get_max_threads(), dynamic = omp_get_dynamic(),
            levels = omp_get_max_active_levels();
  OpenMpExecutor executor(7);
  test::expect_each_index_once(executor);
  EXPECT_EQ(omp_get_max_threads(), max_threads);
  EXPECT_EQ(omp_get_dynamic(), dynamic);
  EXPECT_EQ(omp_get_max_active_levels(), levels);
}

TEST(OpenMpExecutor, WorksInsideAParallelRegion) {
  OpenMpExecutor executor(2);
  int runs[4][5] = {};
#pragma omp parallel for num_threads(4)
  for (int outer = 0; outer < 4; ++outer) {
    test::parallel_for(executor, 5, [&](Index i) { ++runs[outer][i]; });
  }
  for (const auto& row : runs) {
    for (const int r : row) EXPECT_EQ(r, 1);
  }
}

TEST(OpenMpExecutor, RefusesANegativeCount) {
  EXPECT_EQ(test::message_of<OptionError>([] { OpenMpExecutor executor(-1); }),
            "OpenMpExecutor: threads must be 0 (as OpenMP would) or more, got -1");
}

}  // namespace
}  // namespace attn

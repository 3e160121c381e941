// A shared library with a pool of its own, for programs that load it and let it go.
#include <atomic>

#include "attn/thread_pool.hpp"

namespace {

attn::ThreadPool pool(4);

}  // namespace

extern "C" long attn_sum_below(long count);
extern "C" long attn_sum_below(long count) {
  std::atomic<long> sum{0};
  pool.parallel_for(
      count,
      [](void* context, attn::Index i) {
        *static_cast<std::atomic<long>*>(context) += static_cast<long>(i);
      },
      &sum);
  return sum;
}

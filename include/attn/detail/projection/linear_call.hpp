// attn/detail/projection/linear_call.hpp - level 13: products with weights over the work items of
// an executor.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/projection/linear_engine.hpp"
#include "attn/detail/projection/linear_plan.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/executor.hpp"

#if ATTN_HAS_ENGINE
#include "attn/detail/projection/linear_item.hpp"
#endif

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Products that are independent of each other (as the projections of queries, keys and values
/// are), over one set of work items.
template <class A, std::size_t kCount>
struct LinearCalls {
  LinearCall<A> call[kCount];

  Index items() const {
    Index sum = 0;
    for (const LinearCall<A>& c : call) sum += c.items();
    return sum;
  }
  std::size_t bytes(Index workers) const {
    Arena shared;
    for (const LinearCall<A>& c : call) take_tokens(c, shared);
    return shared.used() + per_worker() * static_cast<std::size_t>(workers);
  }
  /// Of those that an executor offers.
  Index workers(Index offered) const { return (std::min)(offered, items()); }

  /// In `memory` of bytes(workers).
  void run(Executor* executor, Index workers, void* memory) const {
    Arena shared(memory);
    const A* converted[kCount];
    for (std::size_t i = 0; i < kCount; ++i) converted[i] = convert_tokens(call[i], shared);
    const std::size_t step = per_worker();
    for_each_item(executor, workers, items(), [&](Index slot, Index item) {
      std::size_t i = 0;
      for (; item >= call[i].items(); ++i) item -= call[i].items();
      multiply_item(
          call[i], converted[i], item,
          static_cast<char*>(memory) + shared.used() + static_cast<std::size_t>(slot) * step);
    });
  }

 private:
  std::size_t per_worker() const {
    std::size_t most = 0;
    for (const LinearCall<A>& c : call) {
      Arena arena;
      LinearScratch<A>(c, arena);
      most = (std::max)(most, arena.used());
    }
    return most;
  }
  /// The dim-lane form reads its tokens as contiguous A, padded with zeros to whole vectors.
  static A* take_tokens(const LinearCall<A>& c, Arena& arena) {
    return arena.take<A>(c.plan.rows_are_lanes ? 0 : c.tokens() * c.token_stride());
  }
  static const A* convert_tokens(const LinearCall<A>& c, Arena& arena) {
    A* const converted = take_tokens(c, arena);
    if (c.plan.rows_are_lanes || c.in() == 0) return converted;
    c.for_each_run(c.x, IndexRange{0, c.tokens()}, [&](Index token, Index offset, Index count) {
      for (Index i = 0; i < count; ++i) {
        A* const row = converted + (token + i) * c.token_stride();
        load_row(c.x, offset + i * c.x.stride.length, row, c.kernels->set);
        std::fill(row + c.in(), row + c.token_stride(), A(0));
      }
    });
    return converted;
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

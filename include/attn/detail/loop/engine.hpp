// attn/detail/loop/engine.hpp - level 9: what runs checked calls. A file that uses the compiled
// library finds it there, others compile it.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <Eigen/Core>
#include <cstddef>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/executor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// Everything that a call works in: what its workers share, and what each has for itself.
struct ScratchBytes {
  std::size_t shared = 0, per_worker = 0;

  ATTN_ALWAYS_INLINE std::size_t total(Index workers) const {
    return shared + per_worker * static_cast<std::size_t>(workers);
  }
};
template <class A>
ScratchBytes scratch_bytes(const AttentionCall<A>& call);

/// Runs a checked call with up to `workers` workers in `memory` of bytes.total(workers).
template <class A>
void run_attention(const AttentionCall<A>& call, Executor* executor, Index workers,
                   const ScratchBytes& bytes, void* memory);

/// A template, so that it needs a body in one place only.
template <class = void>
const MatrixProducts& matrix_products();

/// Any step, behind one pointer: the loop is compiled once, not for each use of it.
template <class A>
class AnyStep {
 public:
  /// `step` outlives this.
  template <class Step>
  ATTN_ALWAYS_INLINE explicit AnyStep(const Step& step)
      : step_(&step),
        run_([](const void* s, const RowTile<A>& tile, const ScoreTile<A>& scores,
                const FetchedRows<A>& fetched) {
          (*static_cast<const Step*>(s))(tile, scores, fetched);
        }) {}

  ATTN_ALWAYS_INLINE void operator()(const RowTile<A>& tile, const ScoreTile<A>& scores,
                                     const FetchedRows<A>& fetched) const {
    run_(step_, tile, scores, fetched);
  }

 private:
  const void* step_;
  void (*run_)(const void*, const RowTile<A>&, const ScoreTile<A>&, const FetchedRows<A>&);
};

/// Brings the scores of a block of rows to a step, tile by tile, in `memory` of
/// scratch_bytes(call).per_worker.
template <class A>
void walk_block(const AttentionCall<A>& call, const RowBlock& block, const AnyStep<A>& step,
                void* memory);

}  // namespace ATTN_ENGINE
inline namespace ATTN_BUILD {

/// How a matrix unit multiplies keys and values of these types, or null.
template <class K, class V>
const MatrixProducts* matrix_products_of() {
  if constexpr (std::is_same_v<K, Eigen::bfloat16> && std::is_same_v<V, Eigen::bfloat16>) {
    return &matrix_products<>();
  } else {
    return nullptr;
  }
}
/// The keys and values of a call.
template <class K, class V>
KeyValueSource keys_and_values(const K& k, const V& v) {
  KeyValueSource source(input(k), input(v));
  source.matrix_products = matrix_products_of<ElementOf<K>, ElementOf<V>>();
  return source;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

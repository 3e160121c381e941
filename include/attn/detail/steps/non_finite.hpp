// attn/detail/steps/non_finite.hpp - level 8: values that are infinite or NaN, which a weight of 0
// does not stop: 0 * infinity is NaN. A block whose outputs are not finite is computed again with
// finite values alone; then this step adds the others, where they are seen.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/steps/softmax.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// o += weight * value for the values that are infinite or NaN, and for live weights alone.
template <class A>
class NonFiniteStep {
 public:
  NonFiniteStep(const AttentionCall<A>& call, TileForm<A>& form) : call_(call), form_(form) {}

  ATTN_COLD void operator()(const RowTile<A>& tile, const ScoreTile<A>& scores,
                            const FetchedRows<A>& fetched) const {
    form_.softmax_again(tile, scores);
    if (call_.dropout.applies()) apply_dropout(call_.dropout, scores);
    fetched.value_rows.for_each_row(scores.keys, [&](Index key, const void* address) {
      const A* const value = static_cast<const A*>(address);
      for (Index d = 0; d < call_.sizes.value_dim; ++d) {
        if (!attn::detail::is_finite(value[d])) add(tile, scores, key, d, value[d]);
      }
    });
  }

 private:
  ATTN_COLD void add(const RowTile<A>& tile, const ScoreTile<A>& weights, Index key, Index d,
                     A value) const {
    for (Index row = 0; row < tile.rows.count; ++row) {
      const A weight = weights(row, key);
      if (bits_of(weight) != 0) form_.value(tile, row, d) += weight * value;
    }
  }

  const AttentionCall<A>& call_;
  TileForm<A>& form_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

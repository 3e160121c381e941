// attn/detail/steps/softmax.hpp - level 8: the forward pass of a tile: scores become weights, and
// the weighted values are added up.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>

#include "attn/config.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/forms/tile_form.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/random.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Drops weights at random and scales the others up.
template <class A>
void apply_dropout(const DropoutRule<A>& rule, const ScoreTile<A>& weights) {
  const KeyRange keys = weights.keys;
  weights.rows.for_each_run([&](Index begin, Index end, Index head, Index query) {
    const RandomPlane plane(RandomPlane::Stream::attention_weights, rule.dropout.seed,
                            rule.dropout.offset, weights.rows.batch, head);
    for (Index row = begin; row < end; ++row) {
      plane.for_each(query + row - begin, keys.begin, keys.end, [&](Index key, std::uint32_t bits) {
        A& weight = weights(row, key);
        weight = bits < rule.threshold ? A(0) : weight * rule.factor;
      });
    }
  });
}

template <class A>
class SoftmaxStep {
 public:
  SoftmaxStep(const AttentionCall<A>& call, TileForm<A>& form) : call_(call), form_(form) {}

  void operator()(const RowTile<A>& tile, const ScoreTile<A>& scores, const FetchedRows<A>&) const {
    const bool rescale = form_.softmax(tile, scores);
    if (call_.dropout.applies()) apply_dropout(call_.dropout, scores);
    form_.accumulate(tile, scores, rescale);
  }

 private:
  const AttentionCall<A>& call_;
  TileForm<A>& form_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

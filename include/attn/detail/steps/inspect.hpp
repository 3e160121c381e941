// attn/detail/steps/inspect.hpp - level 8: a tile taken through the stages of the kernel one by
// one, with what each leaves behind.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/forms/row_tile.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/steps/keep_scores.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Where the stages of scores are kept: [B, Hq, Sq, Sk] each.
template <class A>
struct ScoreStages {
  Tensor4<A> raw, scaled, softcapped, biased, masked;
};

/// Takes raw scores q . k of a call (see without_scores) through its other stages.
template <class A>
class InspectStep {
 public:
  InspectStep(const AttentionCall<A>& call, const ScoreStages<A>& stages)
      : call_(call), stages_(stages) {}

  void operator()(const RowTile<A>&, const ScoreTile<A>& scores, const FetchedRows<A>&) const {
    keep(scores, stages_.raw);
    scores.for_each([&](A& score, const ScorePosition&) { score *= call_.score.scale; });
    keep(scores, stages_.scaled);
    if (call_.score.softcap > 0) softcap(scores);
    keep(scores, stages_.softcapped);
    call_.mask.modify(scores);
    keep(scores, stages_.biased);
    drop(scores);
    keep(scores, stages_.masked);
  }

 private:
  void keep(const ScoreTile<A>& scores, const Tensor4<A>& to) const {
    store_scores(scores, to, kernels());
  }
  /// In whole vectors, as the forms pad their lines.
  void softcap(const ScoreTile<A>& scores) const {
    const bool by_key = scores.lines_are_keys();
    const Index rows = scores.rows.count, keys = scores.keys.size();
    kernels().softcap(scores.scores, by_key ? keys : rows,
                      round_up(by_key ? rows : keys, kernels().lanes),
                      by_key ? scores.key_stride : scores.row_stride, call_.score.softcap);
  }
  void drop(const ScoreTile<A>& scores) const {
    const KeyRange seen = call_.keys_within(scores.rows, scores.keys);
    const Cover cover = seen.empty() ? Cover::none : call_.mask.cover(scores.rows, seen);
    if (cover == Cover::partial) {
      ScoreTile<A> part = scores;
      part.keys = seen;
      part.scores = &scores(0, seen.begin);
      call_.mask.apply(part);
    }
    if (cover != Cover::none && seen.size() == scores.keys.size()) return;
    scores.for_each([&](A& score, const ScorePosition& at) {
      if (cover == Cover::none || at.key < seen.begin || at.key >= seen.end) {
        score = negative_infinity<A>();
      }
    });
  }
  const KernelTable<A>& kernels() const { return *call_.kernels.table; }

  const AttentionCall<A>& call_;
  ScoreStages<A> stages_;
};

/// The call whose scores are q . k alone, for all keys.
template <class A, class M>
AttentionCall<A> without_scores(const AttentionCall<A>& call, const M& no_mask) {
  AttentionCall<A> raw = call;
  raw.mask = MaskStage<A>(no_mask);
  raw.score = ScoreRule<A>();
  return raw;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/projection/linear_plan.hpp - level 13: one product with weights: how it is cut into
// work items, and the memory that each takes.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/instruction_set.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// How a product is cut. A pure function of the length and the input dim, so that a token's bits do
/// not depend on the batch size, the number of threads or the other tokens.
struct LinearPlan {
  bool rows_are_lanes = false;  ///< one vector lane a token; else one lane an input element
  Index row_tile = 0;           ///< tokens whose sums are held at the same time
  Index row_block = 0;          ///< tokens of a work item
  Index feature_tile = 0;       ///< rows of W that are fetched together
  Index feature_block = 0;      ///< rows of W of a work item
  Index depth = 0;              ///< input elements that are summed in one go
};

}  // namespace ATTN_ENGINE
inline namespace ATTN_BUILD {

inline LinearPlan plan_linear(Index length, Index in, Index row_tile) {
  LinearPlan plan;
  plan.rows_are_lanes = length >= 16;  // else most lanes would idle
  if (plan.rows_are_lanes) {
    // Tokens of a block take 384 KiB of float at most: they stay in L2, and each row of W that is
    // fetched (and perhaps converted) serves all of them.
    plan.row_tile = row_tile;
    plan.row_block = 4 * row_tile;
    plan.depth = 512;
    plan.feature_tile = 64;
    // Transposing the tokens costs 1 part in 25 of the product with 128 rows of W; more rows would
    // leave short inputs too few work items.
    plan.feature_block = 128;
  } else {
    // W passes by once: an item is 128 KiB of float of it.
    plan.row_tile = 1;
    plan.row_block = 64;
    plan.depth = in;
    plan.feature_tile = (std::max)(Index{4}, (std::min)(Index{64}, 32 * 1024 / (in + 1)));
    plan.feature_block = plan.feature_tile;
  }
  return plan;
}

}  // namespace ATTN_BUILD
inline namespace ATTN_ENGINE {

/// One checked product. Types are erased; A is the accumulation type. Tokens are numbered through
/// all batches.
template <class A>
struct LinearCall {
  TensorRef x;       ///< [B, 1, S, in]
  TensorRef weight;  ///< [1, 1, out, in]
  TensorRef bias;    ///< [1, 1, 1, out], or null
  TensorRef out;     ///< [B, 1, S, out]
  const KernelTable<A>* kernels = nullptr;
  LinearPlan plan;

  LinearCall() = default;
  ATTN_ALWAYS_INLINE LinearCall(const TensorRef& x_, const TensorRef& weight_,
                                const TensorRef& bias_, const TensorRef& out_, InstructionSet set)
      : x(x_),
        weight(weight_),
        bias(bias_),
        out(out_),
        kernels(&attn::detail::kernels<A>(set)),
        plan(plan_linear(x.shape.length, x.shape.dim, kernels->row_tile)) {}

  ATTN_ALWAYS_INLINE Index in() const { return x.shape.dim; }
  ATTN_ALWAYS_INLINE Index features() const { return weight.shape.length; }
  ATTN_ALWAYS_INLINE Index tokens() const { return x.shape.batch * x.shape.length; }
  ATTN_ALWAYS_INLINE Index feature_blocks() const {
    return ceil_div(features(), plan.feature_block);
  }
  ATTN_ALWAYS_INLINE Index items() const {
    return ceil_div(tokens(), plan.row_block) * feature_blocks();
  }
  /// Elements between tokens in the dim-lane form: whole vectors.
  ATTN_ALWAYS_INLINE Index token_stride() const { return round_up(in(), kernels->lanes); }

  /// Calls f(token, offset in `tensor`, count) for runs of tokens that lie at equal distances.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_run(const TensorRef& tensor, IndexRange tokens,
                                       const F& f) const {
    for (Index token = tokens.begin; token < tokens.end;) {
      const Index i = token % x.shape.length;
      const Index count = (std::min)(tokens.end - token, x.shape.length - i);
      f(token, tensor.offset(token / x.shape.length, 0, i, 0), count);
      token += count;
    }
  }
};

}  // namespace ATTN_ENGINE
inline namespace ATTN_BUILD {

/// Columns [range.begin, range.end) of a tensor.
inline TensorRef columns(TensorRef tensor, IndexRange range) {
  if (tensor.data != nullptr) tensor.data = tensor.at(range.begin * tensor.stride.dim);
  tensor.shape.dim = range.size();
  return tensor;
}

/// What one worker needs for an item.
template <class A>
struct LinearScratch {
  A* tokens;       ///< row lanes: one depth of the tokens, [tile][depth][row_tile]
  A* sums;         ///< row lanes: [tile][feature][row_tile]; dim lanes: [token][feature]
  A* part;         ///< row lanes: the products of one tile over one depth
  A* weight_copy;  ///< rows of W, converted
  A *bias, *ones;  ///< of the item's features; one a token
  const void** weight_rows;

  LinearScratch(const LinearCall<A>& call, Arena& arena) {
    const LinearPlan& plan = call.plan;
    const Index rows = (std::min)(plan.row_block, round_up(call.tokens(), plan.row_tile));
    const Index features = (std::min)(plan.feature_block, call.features());
    const Index depth = (std::min)(plan.depth, call.in());
    tokens = arena.take<A>(plan.rows_are_lanes ? rows * depth : 0);
    sums = arena.take<A>(rows * round_up(features, call.kernels->lanes));
    part = arena.take<A>(call.in() > depth ? plan.feature_tile * plan.row_tile : 0);
    weight_copy = arena.take<A>(call.weight.template has_plain_rows<A>()
                                    ? 0
                                    : plan.feature_tile * copy_stride(call, depth));
    bias = arena.take<A>(features);
    ones = arena.take<A>(plan.row_tile);
    weight_rows = arena.take<const void*>(plan.feature_tile);
  }

  /// Elements between copied rows of W: no power of two, at which transposed lines would share few
  /// sets of the cache.
  static Index copy_stride(const LinearCall<A>& call, Index depth) {
    return round_up(depth, call.kernels->lanes) + call.kernels->lanes;
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/projection/linear_call.hpp - level 13: products with weights, by the kernels of
// attention: x W^T is the score tile without the softmax, the tokens its queries and the rows of W
// its keys.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/executor.hpp"
#include "attn/instruction_set.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// begin .. end - 1, of tokens, features (rows of W) or input elements.

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

/// One checked product. Types are erased; A is the accumulation type. Tokens are numbered through
/// all batches.
template <class A>
struct LinearCall {
  TensorRef x;       ///< [B, 1, S, in]
  TensorRef weight;  ///< [1, 1, out, in]
  TensorRef bias;    ///< [1, 1, 1, out], or null
  TensorRef out;     ///< [B, 1, S, out]
  const KernelTable<A>* kernels = nullptr;
  const WidenTable* widen = nullptr;
  LinearPlan plan;

  LinearCall() = default;
  LinearCall(const TensorRef& x_, const TensorRef& weight_, const TensorRef& bias_,
             const TensorRef& out_, InstructionSet set)
      : x(x_),
        weight(weight_),
        bias(bias_),
        out(out_),
        kernels(&attn::detail::kernels<A>(set)),
        widen(&widening(set)),
        plan(plan_linear(x.shape.length, x.shape.dim, kernels->row_tile)) {}

  Index in() const { return x.shape.dim; }
  Index features() const { return weight.shape.length; }
  Index tokens() const { return x.shape.batch * x.shape.length; }
  Index feature_blocks() const { return ceil_div(features(), plan.feature_block); }
  Index items() const { return ceil_div(tokens(), plan.row_block) * feature_blocks(); }
  /// Elements between tokens in the dim-lane form: whole vectors.
  Index token_stride() const { return round_up(in(), kernels->lanes); }

  /// Calls f(token, offset in `tensor`, count) for runs of tokens that lie at equal distances.
  template <class F>
  void for_each_run(const TensorRef& tensor, IndexRange tokens, const F& f) const {
    for (Index token = tokens.begin; token < tokens.end;) {
      const Index i = token % x.shape.length;
      const Index count = (std::min)(tokens.end - token, x.shape.length - i);
      f(token, tensor.offset(token / x.shape.length, 0, i, 0), count);
      token += count;
    }
  }
};

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

/// The elements `depth` of W's rows `features`, contiguous.
template <class A>
TileRows<A> fetch_weights(const LinearCall<A>& call, const LinearScratch<A>& scratch,
                          const TensorRef& weight, IndexRange features, Index depth) {
  const bool is_in_by_out = weight.stride.length == 1 && weight.stride.dim != 1 && call.in() > 1;
  if (!is_in_by_out) {
    static constexpr KeyMap kAsStored;
    return fetch_rows(weight, kAsStored, 0, 0, features, call.features(),
                      call.plan.rows_are_lanes ? Fetch::converted : Fetch::as_stored,
                      scratch.weight_copy, *call.kernels, *call.widen);
  }
  // The rows of this memory are the columns of W.
  TensorRef transposed = weight;
  std::swap(transposed.shape.length, transposed.shape.dim);
  std::swap(transposed.stride.length, transposed.stride.dim);
  TileRows<A> rows;
  rows.keys = features;
  rows.few_rows = call.kernels->few_rows;
  rows.copy = scratch.weight_copy;
  rows.copy_stride = LinearScratch<A>::copy_stride(call, depth);
  load_columns(columns(transposed, features), 0, depth, scratch.weight_copy, rows.copy_stride,
               *call.kernels, *call.widen);
  return rows;
}

/// One item with a lane for each token.
template <class A>
void multiply_row_lanes(const LinearCall<A>& call, const LinearScratch<A>& scratch,
                        IndexRange tokens, IndexRange features) {
  const LinearPlan& plan = call.plan;
  const KernelTable<A>& kernels = *call.kernels;
  const Index row_tile = plan.row_tile;
  const auto for_each_tile = [&](const auto& f) {
    for (Index first = tokens.begin; first < tokens.end; first += row_tile) {
      const IndexRange tile{first, (std::min)(tokens.end, first + row_tile)};
      const Index place = first - tokens.begin;
      f(tile, round_up(tile.size(), kernels.lanes),
        scratch.tokens + place * (std::min)(plan.depth, call.in()),
        scratch.sums + place * features.size());
    }
  };

  if (call.in() == 0) {  // else the loop's first pass writes the sums
    std::fill_n(scratch.sums, round_up(tokens.size(), row_tile) * features.size(), A(0));
  }
  for (Index begin = 0; begin < call.in(); begin += plan.depth) {
    const IndexRange depth{begin, (std::min)(call.in(), begin + plan.depth)};
    const TensorRef weight = columns(call.weight, depth);
    for_each_tile([&](IndexRange tile, Index lanes, A* queries, A*) {
      const TensorRef x = columns(call.x, depth);
      call.for_each_run(x, tile, [&](Index token, Index offset, Index count) {
        load_columns(x, offset, count, queries + token - tile.begin, row_tile, kernels,
                     *call.widen);
      });
      if (tile.size() == lanes) return;
      for (Index d = 0; d < depth.size(); ++d) {
        std::fill(queries + d * row_tile + tile.size(), queries + d * row_tile + lanes, A(0));
      }
    });
    for (Index first = features.begin; first < features.end; first += plan.feature_tile) {
      const IndexRange fetched{first, (std::min)(features.end, first + plan.feature_tile)};
      fetch_weights(call, scratch, weight, fetched, depth.size()).list(scratch.weight_rows);
      for_each_tile([&](IndexRange, Index lanes, const A* queries, A* sums) {
        sums += (first - features.begin) * row_tile;
        A* const products = begin == 0 ? sums : scratch.part;
        kernels.row_scores(scratch.weight_rows, fetched.size(), depth.size(), queries, row_tile,
                           lanes, A(1), products, row_tile, Prefetch{});
        if (begin == 0) return;
        for (Index f = 0; f < fetched.size(); ++f) {
          // No further than the lanes in use: beyond them lies what nobody has written.
          for (Index i = f * row_tile; i < f * row_tile + lanes; ++i) sums[i] += products[i];
        }
      });
    }
  }

  const TensorRef out = columns(call.out, features);
  const void* const bias = scratch.bias;
  std::fill_n(scratch.ones, row_tile, A(1));
  for_each_tile([&](IndexRange tile, Index lanes, A*, A* sums) {
    if (call.bias.data != nullptr) {  // as a key with a weight of 1
      kernels.row_accumulate(&bias, 1, features.size(), scratch.ones, row_tile, lanes, nullptr,
                             sums, row_tile, Prefetch{});
    }
    call.for_each_run(out, tile, [&](Index token, Index offset, Index count) {
      store_columns(out, offset, count, sums + token - tile.begin, row_tile, kernels, *call.widen);
    });
  });
}

/// One item with a lane for each input element; the tokens are converted already.
template <class A>
void multiply_dim_lanes(const LinearCall<A>& call, const LinearScratch<A>& scratch,
                        const A* converted, IndexRange tokens, IndexRange features) {
  const KernelTable<A>& kernels = *call.kernels;
  const Index stride = round_up(features.size(), kernels.lanes);
  if (call.in() == 0) {
    std::fill_n(scratch.sums, tokens.size() * stride, A(0));
  } else {
    const TileRows<A> rows = fetch_weights(call, scratch, call.weight, features, call.in());
    rows.for_each_run(features, tokens.size(), [&](const RowRun& run, Index feature) {
      rows.few_rows->scores(run, call.in(), converted + tokens.begin * call.token_stride(),
                            call.token_stride(), tokens.size(), A(1),
                            scratch.sums + (feature - features.begin), stride);
    });
  }
  const TensorRef out = columns(call.out, features);
  call.for_each_run(out, tokens, [&](Index token, Index offset, Index count) {
    for (Index i = 0; i < count; ++i) {
      A* const sums = scratch.sums + (token + i - tokens.begin) * stride;
      if (call.bias.data != nullptr) {
        for (Index f = 0; f < features.size(); ++f) sums[f] += scratch.bias[f];
      }
      store_row(out, offset + i * out.stride.length, sums, 1);
    }
  });
}

/// One work item of a product.
template <class A>
void multiply_item(const LinearCall<A>& call, const LinearScratch<A>& scratch, const A* converted,
                   Index item) {
  const LinearPlan& plan = call.plan;
  const Index row = item / call.feature_blocks() * plan.row_block;
  const Index feature = item % call.feature_blocks() * plan.feature_block;
  const IndexRange tokens{row, (std::min)(call.tokens(), row + plan.row_block)};
  const IndexRange features{feature, (std::min)(call.features(), feature + plan.feature_block)};
  if (call.bias.data != nullptr) {
    load_row(columns(call.bias, features), 0, scratch.bias, *call.widen);
  }
  if (plan.rows_are_lanes) {
    multiply_row_lanes(call, scratch, tokens, features);
  } else {
    multiply_dim_lanes(call, scratch, converted, tokens, features);
  }
}

inline namespace ATTN_ERRORS {

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
  Index workers(Executor* executor) const { return (std::min)(worker_count(executor), items()); }

  /// In `memory` of bytes(workers(executor)).
  void run(Executor* executor, void* memory) const {
    Arena shared(memory);
    const A* converted[kCount];
    for (std::size_t i = 0; i < kCount; ++i) converted[i] = convert_tokens(call[i], shared);
    const std::size_t step = per_worker();
    for_each_item(executor, workers(executor), items(), [&](Index slot, Index item) {
      std::size_t i = 0;
      for (; item >= call[i].items(); ++i) item -= call[i].items();
      Arena arena(static_cast<char*>(memory) + shared.used() +
                  static_cast<std::size_t>(slot) * step);
      multiply_item(call[i], LinearScratch<A>(call[i], arena), converted[i], item);
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
        load_row(c.x, offset + i * c.x.stride.length, row, *c.widen);
        std::fill(row + c.in(), row + c.token_stride(), A(0));
      }
    });
    return converted;
  }
};

}  // namespace ATTN_ERRORS
}  // namespace detail
}  // namespace attn

// attn/detail/projection/linear_item.hpp - level 13: one work item of a product, by the kernels of
// attention: x W^T is the score tile without the softmax, the tokens its queries and the rows of W
// its keys.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/projection/linear_engine.hpp"
#include "attn/detail/projection/linear_plan.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The elements `depth` of W's rows `features`, contiguous.
template <class A>
TileRows<A> fetch_weights(const LinearCall<A>& call, const LinearScratch<A>& scratch,
                          const TensorRef& weight, IndexRange features, Index depth) {
  const bool is_in_by_out = weight.stride.length == 1 && weight.stride.dim != 1 && call.in() > 1;
  if (!is_in_by_out) {
    static constexpr KeyMap kAsStored;
    return fetch_rows(weight, kAsStored, 0, 0, features, call.features(),
                      call.plan.rows_are_lanes ? Fetch::converted : Fetch::as_stored,
                      scratch.weight_copy, *call.kernels);
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
               *call.kernels);
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
        load_columns(x, offset, count, queries + token - tile.begin, row_tile, kernels);
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
      store_columns(out, offset, count, sums + token - tile.begin, row_tile, kernels);
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

}  // namespace ATTN_BUILD
inline namespace ATTN_ENGINE {

template <class A>
void multiply_item(const LinearCall<A>& call, const A* converted, Index item, void* memory) {
  Arena arena(memory);
  const LinearScratch<A> scratch(call, arena);
  const LinearPlan& plan = call.plan;
  const Index row = item / call.feature_blocks() * plan.row_block;
  const Index feature = item % call.feature_blocks() * plan.feature_block;
  const IndexRange tokens{row, (std::min)(call.tokens(), row + plan.row_block)};
  const IndexRange features{feature, (std::min)(call.features(), feature + plan.feature_block)};
  if (call.bias.data != nullptr) {
    load_row(columns(call.bias, features), 0, scratch.bias, call.kernels->set);
  }
  if (plan.rows_are_lanes) {
    multiply_row_lanes(call, scratch, tokens, features);
  } else {
    multiply_dim_lanes(call, scratch, converted, tokens, features);
  }
}

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

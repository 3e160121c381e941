// attn/detail/call/call.hpp - level 5: one checked call of attention, as the driver sees it.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstdint>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/detail/call/tile_plan.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/rows/tile_rows.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// The sizes of the whole call.
struct CallSizes {
  Index batch = 0, num_heads = 0, query_length = 0, key_length = 0;
  Index key_dim = 0, value_dim = 0;
  Index heads_per_key = 1, heads_per_value = 1;
};

/// What is computed of it: all, one sequence of a ragged batch, or one head that is inspected.
struct CallPart {
  Index first_batch = 0, num_batches = 0;
  Index first_head = 0, num_groups = 0;
  Index group_heads = 1;  ///< query heads that are taken together
  Index first_split = 0;  ///< no batch has stored keys in the splits before,
  Index lead_splits = 0;  ///< but for those of the keys that stay for ever
};

/// How q . k becomes a score, before biases and masks.
template <class A>
struct ScoreRule {
  A scale = 1;
  A softcap = 0;  ///< 0: none
};

/// Which weights are dropped, and what the others are multiplied by.
template <class A>
struct DropoutRule {
  Dropout dropout;
  std::uint64_t threshold = 0;  ///< random bits below it drop; 0: no dropout
  A factor = 1;

  ATTN_ALWAYS_INLINE bool applies() const { return threshold != 0; }
};

template <class A>
struct CallOutputs {
  TensorRef out;
  AttentionOutputs<A> extra;

  ATTN_ALWAYS_INLINE bool has_weights() const { return extra.weights.data() != nullptr; }
  ATTN_ALWAYS_INLINE bool has_log_sum_exp() const { return extra.log_sum_exp.data() != nullptr; }
};

/// What computes it.
template <class A>
struct CallKernels {
  const KernelTable<A>* table = nullptr;
  const MatrixUnit* matrix_unit = nullptr;  ///< set: the products are its, in the matrix form
};

struct MatrixTiles;  // loop/driver.hpp

/// How a matrix unit computes attention to keys and values of bfloat16. Only a program that has
/// such keys and values compiles it: their KeyValueSource refers to it.
struct MatrixProducts {
  const MatrixUnit* (*find_unit)(InstructionSet set);  ///< as find_matrix_unit
  const MatrixTiles* tiles;
};

/// One checked call of attention. Types are erased; A is the accumulation type.
template <class A>
struct AttentionCall {
  TensorRef q;
  KeyValueSource source;
  CallOutputs<A> outputs;
  CallSizes sizes;
  CallPart part;
  ScoreRule<A> score;
  DropoutRule<A> dropout;
  Span<const double> sinks;
  PerBatch offset = 0;  ///< the position of query 0
  MaskStage<A> mask;
  CallKernels<A> kernels;
  TilePlan plan;

  ATTN_ALWAYS_INLINE explicit AttentionCall(const MaskStage<A>& mask_stage) : mask(mask_stage) {}

  ATTN_ALWAYS_INLINE Index rows() const { return part.group_heads * sizes.query_length; }
  ATTN_ALWAYS_INLINE Index num_blocks() const {
    return rows() == 0 ? 0 : ceil_div(rows(), plan.row_block);
  }
  ATTN_ALWAYS_INLINE Index num_splits() const {
    return (std::max)(
        Index{1}, ceil_div(sizes.key_length, plan.key_split) - part.first_split + part.lead_splits);
  }
  /// The groups of all batches.
  ATTN_ALWAYS_INLINE Index num_groups() const { return part.num_batches * part.num_groups; }
  /// Work items: blocks of rows, and splits of their keys.
  ATTN_ALWAYS_INLINE Index num_items() const { return num_groups() * num_blocks() * num_splits(); }
  /// Whether partial results are merged: a rule of Sk alone, even where one split is left.
  ATTN_ALWAYS_INLINE bool is_split() const { return sizes.key_length > plan.key_split; }
  /// The keys of a split; the first contains all that come before.
  ATTN_ALWAYS_INLINE KeyRange split(Index i) const {
    const Index behind = i < part.lead_splits ? 0 : part.first_split - part.lead_splits;
    const Index begin = (behind + i) * plan.key_split;
    return {i == 0 ? 0 : begin, (std::min)(sizes.key_length, begin + plan.key_split)};
  }
  /// Room for the keys of a tile, in whole steps of `step`.
  ATTN_ALWAYS_INLINE Index tile_keys(Index step) const {
    return (std::min)(plan.key_tile, round_up(sizes.key_length, step));
  }

  /// The sink of a query head, or -infinity.
  ATTN_ALWAYS_INLINE A sink(Index head) const {
    return sinks.empty() ? negative_infinity<A>() : static_cast<A>(sinks[head]);
  }
  /// Rows of a group; `group` counts the groups of all batches.
  ATTN_ALWAYS_INLINE RowBlock row_block(Index group, Index first_row, Index count) const {
    // Sums with lengths cannot overflow; half a Band's reach, so that open sides stay open.
    constexpr Index kFar = Index{1} << (sizeof(Index) * 8 - 5);
    RowBlock block;
    block.batch = part.first_batch + group / part.num_groups;
    block.num_heads = sizes.num_heads;
    block.first_head = part.first_head + group % part.num_groups * part.group_heads;
    block.query_length = sizes.query_length;
    const Index position = offset[block.batch];
    block.query_offset = position > kFar ? kFar : position < -kFar ? -kFar : position;
    block.first_row = first_row;
    block.count = count;
    return block;
  }
  /// Block `i` of a group.
  ATTN_ALWAYS_INLINE RowBlock block(Index group, Index i) const {
    const Index first = i * plan.row_block;
    return row_block(group, first, (std::min)(plan.row_block, rows() - first));
  }
  /// Which of `keys` can matter to these rows.
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys) const {
    const Index end = source.end[rows.batch];
    const KeyRange last = keys & KeyRange{source.begin[rows.batch], end};
    const KeyRange stored = source.first_keys == 0
                                ? last
                                : last | (keys & KeyRange{0, (std::min)(source.first_keys, end)});
    return mask.keys_within(rows, stored, sizes.key_length);
  }
  /// The rows of the block's group, as `needs` says.
  ATTN_ALWAYS_INLINE KeyValueRows<A> rows_of(const RowBlock& block,
                                             const RowNeeds<A>& needs) const {
    return {source,
            block.batch,
            block.first_head / sizes.heads_per_key,
            block.first_head / sizes.heads_per_value,
            needs,
            *kernels.table};
  }
};

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

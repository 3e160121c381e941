// attn/detail/call/check.hpp - level 5: everything that can be wrong with a call, found before
// anything is written, and gathered into one description of the work.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/rows.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/text.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Keys and values as the driver reads them: whole tensors, or a cache through its index map.
struct KeyValueSource {
  TensorRef keys, values;
  KeyMap map;
  Shape4 key_shape, value_shape;  ///< as the call sees them: [B|1, Hk|Hv, Sk, Dk|Dv]
  Index length = 0;               ///< Sk
  PerBatch begin = 0, end = 0;    ///< the keys that are stored: begin .. end - 1

  KeyValueSource() = default;
  /// Whole tensors.
  KeyValueSource(const TensorRef& k, const TensorRef& v)
      : keys(k),
        values(v),
        key_shape(k.shape),
        value_shape(v.shape),
        length(k.shape.length),
        end(k.shape.length) {}
  /// The stored tokens of `batch` sequences, the longest of which holds `longest`.
  KeyValueSource(const TensorRef& k, const TensorRef& v, const KeyMap& key_map, Index batch,
                 Index longest, const PerBatch& first_keys, const PerBatch& lengths)
      : keys(k),
        values(v),
        map(key_map),
        key_shape{batch, k.shape.heads, longest, k.shape.dim},
        value_shape{batch, v.shape.heads, longest, v.shape.dim},
        length(longest),
        begin(first_keys),
        end(lengths) {}
};

/// One checked call of attention. Types are erased; A is the accumulation type.
template <class A>
struct AttentionCall {
  TensorRef q, out;
  KeyValueSource source;
  AttentionOutputs<A> extra;
  Index batch, num_heads, query_length, key_length, key_dim, value_dim;
  Index heads_per_key, heads_per_value;
  Index group_heads, num_groups;  ///< query heads that share key and value head; groups a batch
  A scale, softcap;
  Span<const double> sinks;
  Dropout dropout;
  std::uint64_t dropout_threshold;
  A dropout_scale;
  PerBatch offset;
  MaskStage<A> mask;
  const KernelTable<A>* kernels;
  const WidenTable* widen;
  TilePlan plan;
  /// Where the part that is computed begins: batch, num_groups and group_heads may be narrowed.
  Index first_batch = 0, first_head = 0;
  Index first_split = 0;                    ///< no batch has stored keys in the splits before
  const MatrixUnit* matrix_unit = nullptr;  ///< set: the products are its, in the matrix form

  Index rows() const { return group_heads * query_length; }
  Index num_blocks() const { return rows() == 0 ? 0 : ceil_div(rows(), plan.row_block); }
  Index num_splits() const {
    return (std::max)(Index{1}, ceil_div(key_length, plan.key_split) - first_split);
  }
  /// Whether partial results are merged: a rule of Sk alone, even where one split is left.
  bool is_split() const { return key_length > plan.key_split; }
  /// The keys of a split; the first contains all that come before.
  KeyRange split(Index i) const {
    const Index begin = (first_split + i) * plan.key_split;
    return {i == 0 ? 0 : begin, (std::min)(key_length, begin + plan.key_split)};
  }
  /// How many rows the kernels of the row-lane form take at a time.
  Index lanes() const { return matrix_unit == nullptr ? kernels->lanes : MatrixUnit::kColumns; }
  bool has_dropout() const { return dropout_threshold != 0; }
  /// Whether kernels find keys and values in lists of addresses: those of the row-lane form.
  bool lists_rows() const { return plan.rows_are_lanes && matrix_unit == nullptr; }
  bool copies_keys() const { return !has_plain_rows<A>(source.keys); }

  /// The element offset of a row of the weights that the caller asked for.
  Index weights_offset(Index b, Index head, Index query) const {
    const Stride4& stride = extra.weights.stride();
    return b * stride.batch + head * stride.heads + query * stride.length;
  }

  /// The sink of a query head, or -infinity.
  A sink(Index head) const {
    return sinks.empty() ? negative_infinity<A>() : static_cast<A>(sinks[head]);
  }
  RowBlock row_block(Index b, Index group, Index first_row, Index count) const {
    // Sums with lengths cannot overflow; half a Band's reach, so that open sides stay open.
    constexpr Index kFar = Index{1} << (sizeof(Index) * 8 - 5);
    RowBlock block;
    block.batch = first_batch + b;
    block.num_heads = num_heads;
    block.first_head = first_head + group * group_heads;
    block.query_length = query_length;
    const Index position = offset[block.batch];
    block.query_offset = position > kFar ? kFar : position < -kFar ? -kFar : position;
    block.first_row = first_row;
    block.count = count;
    return block;
  }
  /// Cuts the work into tiles, for the matrix form if `unit` is not null and the rows are enough.
  void plan_work(const MatrixUnit* unit) {
    plan = plan_tiles(rows(), key_length, key_dim, value_dim, kernels->lanes, kernels->row_tile);
    matrix_unit = plan.rows_are_lanes ? unit : nullptr;
    if (matrix_unit != nullptr) {
      plan = plan_matrix_tiles(rows(), key_length, key_dim, value_dim, kernels->lanes);
    }
    // A rolling cache holds the last keys of a sequence without end: no work for those before.
    Index first_key = key_length;
    for (Index b = first_batch; b < first_batch + batch; ++b) {
      first_key = (std::min)(first_key, source.begin[b]);
    }
    first_split = first_key / plan.key_split;
  }
  /// The keys that can matter to these rows.
  KeyRange key_range(const RowBlock& rows) const {
    return mask.key_range(rows, key_length) &
           KeyRange{source.begin[rows.batch], source.end[rows.batch]};
  }
};

inline namespace ATTN_ERRORS {

/// Refuses queries that see keys which a cache has let go: first_held(b) is the first that it still
/// holds for batch b. Masks may hide those before.
template <class A, class FirstHeld>
void require_held_keys(const CallShapes& shapes, const AttentionCall<A>& call,
                       const FirstHeld& first_held) {
  const auto sees = [&](const RowBlock& row, Index key) {
    A score = 0;
    const ScoreTile<A> tile{row, KeyRange{key, key + 1}, &score, 1, 1, call.kernels->set};
    const Cover cover = call.mask.cover(row, tile.keys);
    if (cover == Cover::partial) call.mask.apply(tile);
    return cover != Cover::none && !is_negative_infinity(score);
  };
  const auto check_rows = [&](const RowBlock& group, Index held) {
    const auto lost_keys = [&](const RowBlock& rows) {
      return call.mask.key_range(rows, call.key_length) & KeyRange{0, held};
    };
    if (lost_keys(group).empty()) return;
    for (Index i = 0; i < group.count; ++i) {
      const RowBlock row = group.slice(i, 1);
      const KeyRange lost = lost_keys(row);
      for (Index key = lost.begin; key < lost.end; ++key) {
        if (!sees(row, key)) continue;
        shapes.raise_shape(
            "query " + std::to_string(row.query(0)) + " of batch " + std::to_string(row.batch) +
            ", at position " + std::to_string(row.position_begin()) + ", sees key " +
            std::to_string(key) + ", and the cache holds none before " + std::to_string(held) +
            ": it keeps the windows of its last longest_append tokens, and no query may stand "
            "further back unless its mask hides what is missing");
      }
    }
  };
  for (Index b = 0; b < call.batch; ++b) {
    const Index held = first_held(call.first_batch + b);
    if (held == 0 || call.rows() == 0) continue;
    for (Index group = 0; group < call.num_groups; ++group) {
      check_rows(call.row_block(b, group, 0, call.rows()), held);
    }
  }
}

/// The same for a cache as it is.
template <class A>
void require_held_keys(const CallShapes& shapes, const AttentionCall<A>& call) {
  require_held_keys(shapes, call, [&](Index b) { return call.source.begin[b]; });
}

/// The rules that options follow by themselves. `largest`: the largest finite value of the
/// accumulation type.
inline void check_options(const CallShapes& call, const AttentionOptions& options,
                          double largest = (std::numeric_limits<double>::max)()) {
  const auto fits = [largest](double value) {
    return is_finite(value) && value <= largest && value >= -largest;
  };
  if (options.scale && !fits(*options.scale)) {
    call.raise_option("options.scale must be finite in the accumulation type, got " +
                      general(*options.scale));
  }
  if (!fits(options.softcap) || options.softcap < 0) {
    call.raise_option(
        "options.softcap must be finite in the accumulation type and 0 (none) or more, got " +
        general(options.softcap));
  }
  const double p = options.dropout.probability;
  if (!is_finite(p) || p < 0 || p > 1) {
    call.raise_option("options.dropout.probability must lie within 0 and 1, got " + general(p));
  }
  if (!is_available(options.instruction_set, active_instruction_set())) {
    call.raise_option(std::string("options.instruction_set ") + name_of(options.instruction_set) +
                      " is not offered by this CPU; its best is " +
                      name_of(active_instruction_set()));
  }
}

/// The rules that q, k and v follow, heads among them.
inline void check_inputs(const CallShapes& call, const Shape4& q, const Shape4& k,
                         const Shape4& v) {
  call.require(k.batch == q.batch || k.batch == 1, "k must have the batch of q, or 1");
  call.require(v.batch == q.batch || v.batch == 1, "v must have the batch of q, or 1");
  call.require(k.length == v.length, "k and v must have the same length");
  call.require(k.dim == q.dim, "q and k must have the same dim");
  call.require(q.heads == 0 || (k.heads > 0 && q.heads % k.heads == 0),
               "the heads of k must divide the heads of q");
  call.require(q.heads == 0 || (v.heads > 0 && q.heads % v.heads == 0),
               "the heads of v must divide the heads of q");
}

/// Checks the mask and the options that depend on shapes; returns the position of query 0.
template <class M>
PerBatch resolve_offset(CallShapes& call, const TensorRef& q, const KeyValueSource& source,
                        const PerBatch* past, const M& mask, const AttentionOptions& options,
                        double largest) {
  MaskChecker checker(call, Shape4{q.shape.batch, q.shape.heads, q.shape.length, source.length},
                      largest);
  if (past != nullptr) checker.set_past(*past);
  mask.check(checker);
  if (options.query_offset) checker.declare_offset("options.query_offset", *options.query_offset);
  if (!options.sinks.empty()) checker.check_per_head("options.sinks", options.sinks, true);
  return checker.resolve_offset();
}

/// The work of a call whose inputs have been checked. `out` and `extra` may be null (for sizing).
template <class A, class M>
AttentionCall<A> describe_call(CallShapes& call, const TensorRef& q, const KeyValueSource& source,
                               const PerBatch* past, const TensorRef& out, const M& mask,
                               const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  const double largest = static_cast<double>((std::numeric_limits<A>::max)());
  check_options(call, options, largest);
  const PerBatch offset = resolve_offset(call, q, source, past, mask, options, largest);

  const bool is_empty = q.shape.heads == 0;
  const Index per_key = is_empty ? 1 : q.shape.heads / source.keys.shape.heads;
  const Index per_value = is_empty ? 1 : q.shape.heads / source.values.shape.heads;
  const Index group = std::gcd(per_key, per_value);
  const Index dim = q.shape.dim;
  const double scale = options.scale ? *options.scale
                       : dim > 0     ? 1.0 / std::sqrt(static_cast<double>(dim))
                                     : 0.0;
  const KernelTable<A>& table = kernels<A>(options.instruction_set);
  const double p = options.dropout.probability;
  AttentionCall<A> work{q,
                        out,
                        source,
                        extra,
                        q.shape.batch,
                        q.shape.heads,
                        q.shape.length,
                        source.length,
                        dim,
                        source.values.shape.dim,
                        per_key,
                        per_value,
                        group,
                        is_empty ? 0 : q.shape.heads / group,
                        static_cast<A>(scale),
                        static_cast<A>(options.softcap),
                        options.sinks,
                        options.dropout,
                        dropout_threshold(p),
                        p < 1 ? static_cast<A>(1.0 / (1.0 - p)) : A(0),
                        offset,
                        MaskStage<A>(mask),
                        &table,
                        &widening(options.instruction_set),
                        TilePlan{}};
  const KeyRange batches = call.batches(q.shape.batch);
  work.first_batch = batches.begin;
  work.batch = batches.size();
  const auto is_bfloat16 = [](const TensorRef& x) { return x.type == ElementType::bfloat16; };
  const bool may_round_weights = options.allow_bf16_weights && std::is_same_v<A, float> &&
                                 is_bfloat16(q) && is_bfloat16(source.keys) &&
                                 is_bfloat16(source.values);
  work.plan_work(may_round_weights ? find_matrix_unit(options.instruction_set) : nullptr);
  return work;
}

/// Checks out and the extra outputs against the shapes of the call.
template <class A>
void check_outputs(CallShapes& call, const Shape4& q, Index key_length, Index value_dim,
                   const TensorRef& out, const AttentionOutputs<A>& extra) {
  call.add_output("out", out);
  // A pointer without a shape is given, and wrong.
  const auto is_given = [](const Tensor4<A>& view) {
    return view.data() != nullptr || view.shape() != Shape4{};
  };
  const bool has_weights = is_given(extra.weights), has_sum = is_given(extra.log_sum_exp);
  if (has_weights) call.add_output("weights", TensorRef(extra.weights));
  if (has_sum) call.add_output("log_sum_exp", TensorRef(extra.log_sum_exp));
  call.require(out.shape == Shape4{q.batch, q.heads, q.length, value_dim},
               "out must be [batch of q, heads of q, length of q, dim of v]");
  call.require(
      !has_weights || extra.weights.shape() == Shape4{q.batch, q.heads, q.length, key_length},
      "weights must be [batch of q, heads of q, length of q, length of k]");
  call.require(!has_sum || extra.log_sum_exp.shape() == Shape4{q.batch, q.heads, q.length, 1},
               "log_sum_exp must be [batch of q, heads of q, length of q, 1]");
}

}  // namespace ATTN_ERRORS
}  // namespace detail
}  // namespace attn

// attn/detail/call/check.hpp - level 5: everything that can be wrong with a call, found before
// anything is written, and gathered into one description of the work.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/base/rounding.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/erased_mask.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/detail/call/tile_plan.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Cuts the work of a call into tiles, for the matrix form if `unit` is not null and the rows are
/// enough.
template <class A>
void plan_work(AttentionCall<A>& call, const MatrixUnit* unit) {
  const KernelTable<A>& table = *call.kernels.table;
  const CallSizes& sizes = call.sizes;
  call.plan = plan_tiles(call.rows(), sizes.key_length, sizes.key_dim, sizes.value_dim, table.lanes,
                         table.row_tile);
  call.kernels.matrix_unit = call.plan.rows_are_lanes ? unit : nullptr;
  if (call.kernels.matrix_unit != nullptr) {
    call.plan = plan_matrix_tiles(call.rows(), sizes.key_length, sizes.key_dim, sizes.value_dim,
                                  table.lanes);
  }
  // A rolling cache holds the last keys of a sequence without end: no work for those before.
  CallPart& part = call.part;
  Index first_key = sizes.key_length;
  for (Index b = part.first_batch; b < part.first_batch + part.num_batches; ++b) {
    first_key = (std::min)(first_key, call.source.begin[b]);
  }
  part.first_split = first_key / call.plan.key_split;
  part.lead_splits =
      (std::min)(part.first_split, ceil_div(call.source.first_keys, call.plan.key_split));
}

/// Chooses the kernels of a call, and cuts its work into tiles that fit them.
template <class A>
void choose_kernels(AttentionCall<A>& call, const AttentionOptions& options) {
  const InstructionSet set = options.instruction_set;
  call.kernels.table = &kernels<A>(set);
  // Keys and values that have matrix products are of bfloat16.
  const bool may_round_weights = options.allow_bf16_weights && std::is_same_v<A, float> &&
                                 call.q.format->type == NumberType::bfloat16 &&
                                 call.source.matrix_products != nullptr;
  plan_work(call, may_round_weights ? call.source.matrix_products->find_unit(set) : nullptr);
}

/// The rules that options follow by themselves, in a call that sums in A.
template <class A>
void check_options(const CallShapes& call, const AttentionOptions& options) {
  const auto fits = [](double value) {
    constexpr double kLargest = static_cast<double>((std::numeric_limits<A>::max)());
    return is_finite(value) && value <= kLargest && value >= -kLargest;
  };
  if (options.scale && !fits(*options.scale)) {
    call.raise_option(
        {"options.scale must be finite in the accumulation type, got ", *options.scale});
  }
  if (!fits(options.softcap) || options.softcap < 0) {
    call.raise_option(
        {"options.softcap must be finite in the accumulation type and 0 (none) or more, got ",
         options.softcap});
  }
  // The other options round to something near them; 0 means something else than a small cap.
  if (options.softcap > 0 && bits_of(static_cast<A>(options.softcap)) == 0) {
    call.raise_option(
        {"options.softcap must not round to 0, which means none, in the accumulation type, got ",
         options.softcap});
  }
  const double p = options.dropout.probability;
  if (!is_finite(p) || p < 0 || p > 1) {
    call.raise_option({"options.dropout.probability must lie within 0 and 1, got ", p});
  }
  if (!is_available(options.instruction_set, active_instruction_set())) {
    call.raise_option({"options.instruction_set ", name_of(options.instruction_set),
                       " is not offered by this CPU; its best is ",
                       name_of(active_instruction_set())});
  }
}

/// The rules that q, k and v follow, heads among them.
inline void check_inputs(const CallShapes& call, const Shape4& q, const Shape4& k,
                         const Shape4& v) {
  call.expect(k.batch == q.batch || k.batch == 1, "k must have the batch of q, or 1");
  call.expect(v.batch == q.batch || v.batch == 1, "v must have the batch of q, or 1");
  call.expect(k.length == v.length, "k and v must have the same length");
  call.expect(k.dim == q.dim, "q and k must have the same dim");
  call.expect(q.heads == 0 || (k.heads > 0 && q.heads % k.heads == 0),
              "the heads of k must divide the heads of q");
  call.expect(q.heads == 0 || (v.heads > 0 && q.heads % v.heads == 0),
              "the heads of v must divide the heads of q");
}

/// What a description of a call is for: the call, or the size of its workspace.
enum class Purpose { call, sizing };

/// Checks the mask and the options that depend on shapes; returns the position of query 0.
inline PerBatch resolve_offset(CallShapes& call, const TensorRef& q, const KeyValueSource& source,
                               const PerBatch* past, const MaskDeclaration& mask,
                               const AttentionOptions& options, double largest,
                               Purpose purpose = Purpose::call) {
  MaskChecker checker(call, Shape4{q.shape.batch, q.shape.heads, q.shape.length, source.length},
                      largest);
  if (past != nullptr) checker.set_past(*past);
  if (purpose == Purpose::sizing) checker.set_sizing();
  mask.declare(checker);
  if (options.query_offset) checker.declare_offset("options.query_offset", *options.query_offset);
  if (!options.sinks.empty()) checker.check_per_head("options.sinks", options.sinks, true);
  return checker.resolve_offset();
}

/// Refuses a call whose items of work, or the numbers that splits of its keys leave to be merged,
/// are too many: views with strides of 0 may ask for that.
template <class A>
void require_countable(const CallShapes& shapes, const AttentionCall<A>& call) {
  // Each row leaves its output, in whole vectors, a maximum and a sum for each split.
  constexpr Index kMoreThanValues = 64;
  const CheckedSize numbers = CheckedSize(call.num_groups()) * call.num_splits() *
                              call.num_blocks() * call.plan.row_block *
                              (CheckedSize(call.sizes.value_dim) + kMoreThanValues);
  if (!(numbers * Index{sizeof(A)}).fits()) {
    shapes.raise_shape("the call is too large: the size of its partial results overflows");
  }
}

/// The work of a call whose inputs have been checked. `out` and `extra` may be null (for sizing).
template <class A>
AttentionCall<A> describe_call(CallShapes& shapes, const TensorRef& q, const KeyValueSource& source,
                               const PerBatch* past, const TensorRef& out, const MaskOf<A>& mask,
                               const AttentionOptions& options, const AttentionOutputs<A>& extra) {
  const double largest = static_cast<double>((std::numeric_limits<A>::max)());
  check_options<A>(shapes, options);
  const PerBatch offset = resolve_offset(shapes, q, source, past, mask, options, largest);

  AttentionCall<A> call(mask.stage());
  call.q = q;
  call.source = source;
  call.outputs.out = out;
  call.outputs.extra = extra;
  call.offset = offset;
  call.sinks = options.sinks;

  CallSizes& sizes = call.sizes;
  sizes.batch = q.shape.batch;
  sizes.num_heads = q.shape.heads;
  sizes.query_length = q.shape.length;
  sizes.key_length = source.length;
  sizes.key_dim = q.shape.dim;
  sizes.value_dim = source.values.shape.dim;
  if (sizes.num_heads > 0) {
    sizes.heads_per_key = sizes.num_heads / source.keys.shape.heads;
    sizes.heads_per_value = sizes.num_heads / source.values.shape.heads;
  }
  CallPart& part = call.part;
  const KeyRange batches = shapes.batches(sizes.batch);
  part.first_batch = batches.begin;
  part.num_batches = batches.size();
  part.group_heads = std::gcd(sizes.heads_per_key, sizes.heads_per_value);
  part.num_groups = sizes.num_heads / part.group_heads;

  call.score.scale =
      static_cast<A>(options.scale       ? *options.scale
                     : sizes.key_dim > 0 ? 1.0 / std::sqrt(static_cast<double>(sizes.key_dim))
                                         : 0.0);
  call.score.softcap = static_cast<A>(options.softcap);
  const double p = options.dropout.probability;
  call.dropout.dropout = options.dropout;
  call.dropout.threshold = dropout_threshold(p);
  call.dropout.factor = p < 1 ? static_cast<A>(1.0 / (1.0 - p)) : A(0);

  choose_kernels(call, options);
  require_countable(shapes, call);
  return call;
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
  call.expect(out.shape == Shape4{q.batch, q.heads, q.length, value_dim},
              "out must be [batch of q, heads of q, length of q, dim of v]");
  call.expect(
      !has_weights || extra.weights.shape() == Shape4{q.batch, q.heads, q.length, key_length},
      "weights must be [batch of q, heads of q, length of q, length of k]");
  call.expect(!has_sum || extra.log_sum_exp.shape() == Shape4{q.batch, q.heads, q.length, 1},
              "log_sum_exp must be [batch of q, heads of q, length of q, 1]");
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

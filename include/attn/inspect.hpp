// attn/inspect.hpp - level 11: a step-by-step look inside one head of a call of attention.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/steps/inspection_warnings.hpp"
#include "attn/detail/text/inspection_text.hpp"
#include "attn/mask.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

/// One step: a matrix, and what its entries span.
template <class A>
struct InspectedStep {
  Tensor4Buffer<A> values;  ///< [1, 1, rows, columns]
  A min = 0, max = 0;       ///< of the finite entries of keys that are seen; 0 if there is none
  Index not_finite = 0;     ///< how many entries of keys that are seen are infinite or NaN

  /// The same as an Eigen map, which lives as long as `values`.
  typename Tensor4<const A>::MatrixMap matrix() const { return values.view().matrix(0, 0); }
};

/// Everything that one query head of one batch does between q, k, v and its output. The steps from
/// raw to weights are [1, 1, Sq, Sk], in the order in which they are computed; ONNX's Attention
/// calls four of them qk_matmul_output: scaled (mode 0), softcapped, masked and weights.
template <class A>
struct AttentionInspection {
  Index batch = 0, head = 0;           ///< what was looked at; head is a query head
  Index key_head = 0, value_head = 0;  ///< what that head reads
  Shape4 q, k, v;                      ///< of the whole call
  A scale = 0, softcap = 0;            ///< as used; softcap 0: none
  Index query_offset = 0;              ///< the position of query 0 among the keys
  A sink = 0;                          ///< -infinity: none
  double dropout = 0;                  ///< its probability

  InspectedStep<A> raw;          ///< q . k
  InspectedStep<A> scaled;       ///< scale * raw
  InspectedStep<A> softcapped;   ///< softcap * tanh(scaled / softcap)
  InspectedStep<A> biased;       ///< after biases, ALiBi and score functions
  InspectedStep<A> masked;       ///< -infinity where a key is absent
  InspectedStep<A> weights;      ///< after softmax and dropout
  InspectedStep<A> output;       ///< [1, 1, Sq, Dv]: weights * v
  Tensor4Buffer<A> log_sum_exp;  ///< [1, 1, Sq, 1]

  std::vector<Index> masked_keys;  ///< how many keys each query does not see
  std::vector<A> row_sums;         ///< of the weights: 1, unless there is a sink, dropout or no key
  std::vector<std::string> warnings;

  /// All of it as text; the matrices themselves where they are small.
  std::string to_string() const;
};

template <class A>
std::ostream& operator<<(std::ostream& stream, const AttentionInspection<A>& inspection) {
  return stream << inspection.to_string();
}

namespace detail {

template <class A>
Tensor4Buffer<A> score_buffer(const AttentionCall<A>& call, Index columns) {
  return Tensor4Buffer<A>(Shape4{1, 1, call.query_length, columns});
}

/// Fills the steps from raw to masked with what the stages of the kernel compute. All keys are
/// computed, also those that a mask lets the kernel skip.
template <class A>
void walk_scores(const AttentionCall<A>& call, const Scratch<A>& scratch, const RowBlock& block,
                 AttentionInspection<A>& result) {
  AttentionCall<A> unscaled = call;
  unscaled.scale = 1;
  unscaled.softcap = 0;
  const auto keep = [](const ScoreTile<A>& tile, InspectedStep<A>& step) {
    tile.for_each([&](const A& score, const ScorePosition& at) {
      step.values(0, 0, at.query, at.key) = score;
    });
  };
  for_each_row_tile(call, scratch, block,
                    [&](const RowTile<A>& tile) { load_queries(call, tile); });
  const Index key_head = call.first_head / call.heads_per_key;
  for (Index begin = 0; begin < call.key_length; begin += call.plan.key_tile) {
    const KeyRange keys =
        KeyRange{0, call.key_length} & KeyRange{begin, begin + call.plan.key_tile};
    const TileRows<A> rows =
        fetch_rows(call.source.keys, call.source.map, block.batch, key_head, keys, keys.end,
                   Fetch::converted, scratch.key_copy, *call.kernels, *call.widen);
    if (call.lists_rows()) rows.list(scratch.key_rows);
    for_each_row_tile(call, scratch, block, [&](const RowTile<A>& tile) {
      const Staircase all{keys, {}, 0};
      keep(compute_scores(unscaled, scratch, tile, keys, all, rows, begin, Prefetch{}), result.raw);
      const ScoreTile<A> scores =
          compute_scores(call, scratch, tile, keys, all, rows, begin, Prefetch{});
      keep(scores, result.softcapped);
      call.mask.modify(scores);
      keep(scores, result.biased);

      const KeyRange seen = keys & tile.keys;
      const Cover cover = seen.empty() ? Cover::none : call.mask.cover(tile.rows, seen);
      if (cover == Cover::partial) {
        ScoreTile<A> part = scores;
        part.keys = seen;
        part.scores = &scores(0, seen.begin);
        call.mask.apply(part);
      }
      scores.for_each([&](A& score, const ScorePosition& at) {
        if (cover == Cover::none || at.key < seen.begin || at.key >= seen.end) {
          score = negative_infinity<A>();
        }
      });
      keep(scores, result.masked);
    });
  }
}

/// Sets the range of a step, over the entries (row, column) that `counts` selects.
template <class A, class Counts>
void measure(InspectedStep<A>& step, const Counts& counts) {
  bool is_first = true;
  const Shape4 shape = step.values.shape();
  for (Index i = 0; i < shape.length; ++i) {
    for (Index j = 0; j < shape.dim; ++j) {
      if (!counts(i, j)) continue;
      const A value = step.values(0, 0, i, j);
      if (!is_finite(value)) {
        ++step.not_finite;
        continue;
      }
      step.min = is_first ? value : (std::min)(step.min, value);
      step.max = is_first ? value : (std::max)(step.max, value);
      is_first = false;
    }
  }
}

/// Ranges, counts and sums.
template <class A>
void summarize(AttentionInspection<A>& result) {
  const Shape4 shape = result.masked.values.shape();
  const auto is_seen = [&](Index i, Index j) {
    return !is_negative_infinity(result.masked.values(0, 0, i, j));
  };
  for (InspectedStep<A>* const step : {&result.raw, &result.scaled, &result.softcapped,
                                       &result.biased, &result.masked, &result.weights}) {
    measure(*step, is_seen);
  }
  measure(result.output, [](Index, Index) { return true; });
  for (Index i = 0; i < shape.length; ++i) {
    Index absent = 0;
    double sum = 0;
    for (Index j = 0; j < shape.dim; ++j) {
      absent += is_seen(i, j) ? 0 : 1;
      sum += static_cast<double>(result.weights.values(0, 0, i, j));
    }
    result.masked_keys.push_back(absent);
    result.row_sums.push_back(static_cast<A>(sum));
  }
}

inline namespace ATTN_ERRORS {

template <class A, class M>
AttentionInspection<A> inspect(const TensorRef& q, const TensorRef& k, const TensorRef& v,
                               Index batch, Index head, const M& mask,
                               const AttentionOptions& options) {
  CallShapes shapes("inspect_attention");
  shapes.add_input("q", q);
  shapes.add_input("k", k);
  shapes.add_input("v", v);
  check_inputs(shapes, q.shape, k.shape, v.shape);
  if (batch < 0 || batch >= q.shape.batch || head < 0 || head >= q.shape.heads) {
    shapes.raise_shape("q has no batch " + std::to_string(batch) + " with a head " +
                       std::to_string(head));
  }
  AttentionOptions own = options;
  own.workspace = Workspace();
  own.allow_bf16_weights = false;
  AttentionCall<A> call = describe_call<A>(shapes, q, KeyValueSource(k, v), nullptr, TensorRef(),
                                           mask, own, AttentionOutputs<A>{});
  // One head is a group by itself from here on; the tiles stay those of the whole call, and so the
  // bits.
  call.batch = call.num_groups = call.group_heads = 1;
  call.first_batch = batch;
  call.first_head = head;

  AttentionInspection<A> result;
  result.batch = batch;
  result.head = head;
  result.key_head = head / call.heads_per_key;
  result.value_head = head / call.heads_per_value;
  result.q = q.shape;
  result.k = k.shape;
  result.v = v.shape;
  result.scale = call.scale;
  result.softcap = call.softcap;
  result.query_offset = call.offset[batch];
  result.sink = call.sink(head);
  result.dropout = call.dropout.probability;
  for (InspectedStep<A>* const step :
       {&result.raw, &result.softcapped, &result.biased, &result.masked, &result.weights}) {
    step->values = score_buffer(call, call.key_length);
  }
  result.output.values = score_buffer(call, call.value_dim);
  result.log_sum_exp = score_buffer(call, 1);

  // The scores, stage by stage.
  {
    const WorkMemory memory(shapes, own.workspace, scratch_bytes(call, 1));
    Arena arena(memory.data());
    const Scratch<A> scratch(call, arena);
    for (Index first = 0; first < call.rows(); first += call.plan.row_block) {
      const Index count = (std::min)(call.plan.row_block, call.rows() - first);
      walk_scores(call, scratch, call.row_block(0, 0, first, count), result);
    }
  }
  result.scaled.values = result.raw.values;
  for (Index i = 0; i < result.scaled.values.size(); ++i) {
    result.scaled.values.data()[i] *= call.scale;
  }

  // Weights and output, by the kernel itself. Every batch and head that it names is this one.
  const auto alone = [](Tensor4Buffer<A>& buffer) {
    const Shape4 shape = buffer.shape();
    return Tensor4<A>(buffer.data(), shape, Stride4{0, 0, shape.dim, 1});
  };
  call.out = TensorRef(alone(result.output.values));
  call.extra.weights = alone(result.weights.values);
  call.extra.log_sum_exp = alone(result.log_sum_exp);
  run_attention(shapes, call, own);

  summarize(result);
  result.warnings = inspection_warnings(call, shapes.tensors(), result);
  return result;
}

}  // namespace ATTN_ERRORS
}  // namespace detail

template <class A>
std::string AttentionInspection<A>::to_string() const {
  return detail::inspection_text(*this);
}

inline namespace ATTN_ERRORS {

/// Looks into one (batch, query head) of the call scaled_dot_product_attention(q, k, v, mask,
/// options): every step as a value, its range, what is masked, and what looks wrong. Print it, or
/// read the steps:
///
///   std::cout << inspect_attention(q, k, v, 0, 3, causal());
///
///   q, k, v        as in scaled_dot_product_attention
///   batch, head    0 <= batch < B, 0 <= head < Hq
///
/// Scores come from the stages of the kernel, weights, output and log-sum-exp from the kernel: they
/// have the bits of the call (before the rounding to a 16-bit out). options.workspace is not used,
/// nor is options.allow_bf16_weights: what is shown is what the float kernels compute.
/// Score functions also see the keys that a mask drops.
///
/// Throws: ShapeError, OptionError.
/// Cost: about three times that head's part of the call, and memory for seven [Sq, Sk] matrices.
template <class Q, class K, class V, class M = NoMask>
AttentionInspection<
    AccumulationType<detail::ElementOf<Q>, detail::ElementOf<K>, detail::ElementOf<V>>>
inspect_attention(const Q& q, const K& k, const V& v, Index batch, Index head, const M& mask = M(),
                  const AttentionOptions& options = {}) {
  detail::require_inputs<Q, K, V>();
  static_assert(is_mask_v<M>,
                "attn: argument 6 must be a mask of attn/mask.hpp; wrap a lambda in keep_if, "
                "drop_if or modify_score, and a tensor in keep_where, drop_where or add_bias");
  using A = AccumulationType<detail::ElementOf<Q>, detail::ElementOf<K>, detail::ElementOf<V>>;
  using detail::ArgumentOf;
  using detail::TensorRef;
  return detail::inspect<A>(TensorRef(ArgumentOf<Q>::view(q)), TensorRef(ArgumentOf<K>::view(k)),
                            TensorRef(ArgumentOf<V>::view(v)), batch, head, mask, options);
}

}  // namespace ATTN_ERRORS
}  // namespace attn

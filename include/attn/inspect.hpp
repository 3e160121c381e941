// attn/inspect.hpp - level 11: a step-by-step look inside one head of a call of attention.
#pragma once

#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/loop/inspect_head.hpp"
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
  ATTN_ALWAYS_INLINE typename Tensor4<const A>::MatrixMap matrix() const {
    return values.view().matrix(0, 0);
  }
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
ATTN_ALWAYS_INLINE std::ostream& operator<<(std::ostream& stream,
                                            const AttentionInspection<A>& inspection) {
  return stream << inspection.to_string();
}

template <class A>
ATTN_ALWAYS_INLINE std::string AttentionInspection<A>::to_string() const {
  return detail::inspection_text(*this);
}

inline namespace ATTN_BUILD {

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
/// Cost: 7 to 20 times that head's part of a causal call (64 to 1024 tokens, Zen 4), most of it for
/// the memory of seven [Sq, Sk] matrices.
template <class Q, class K, class V, class M = NoMask>
AttentionInspection<detail::AccumulationOf<Q, K, V>> inspect_attention(
    const Q& q, const K& k, const V& v, Index batch, Index head, const M& mask = M(),
    const AttentionOptions& options = {}) {
  using A = detail::AccumulationOf<Q, K, V>;
  AttentionInspection<A> result;
  detail::inspect_head<A>(detail::input(q), detail::input(k), detail::input(v), batch, head,
                          detail::checked_mask<6>(mask), options, result);
  return result;
}

}  // namespace ATTN_BUILD
}  // namespace attn

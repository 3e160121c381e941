// attn/reference.hpp - level 4: attention by the book, to be read and to be compared with.
//
// One loop nest over plain callables, without tiles, masks or vector code: it shares nothing with
// the fast path but the views, the options and dropout's random bits. Not part of attn.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/config.hpp"
#include "attn/error.hpp"
#include "attn/options.hpp"
#include "attn/random.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

// What is not finite is written and recognised by its bits, and passed by reference: under
// -ffast-math a compiler may take it that no comparison, argument or result is infinite or NaN.

inline bool reference_is_finite(const double& value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7FF0000000000000u) != 0x7FF0000000000000u;
}

template <class A>
void reference_set_minus_infinity(A& value) {
  if constexpr (sizeof(A) == sizeof(std::uint64_t)) {
    const std::uint64_t bits = 0xFFF0000000000000u;
    std::memcpy(&value, &bits, sizeof value);
  } else if constexpr (sizeof(A) == sizeof(std::uint32_t)) {
    const std::uint32_t bits = 0xFF800000u;
    std::memcpy(&value, &bits, sizeof value);
  } else {
    value = -std::numeric_limits<A>::infinity();
  }
}

template <class A>
bool reference_is_minus_infinity(const A& value) {
  if constexpr (sizeof(A) == sizeof(std::uint64_t)) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits == 0xFFF0000000000000u;
  } else if constexpr (sizeof(A) == sizeof(std::uint32_t)) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits == 0xFF800000u;
  } else {
    return value < std::numeric_limits<A>::lowest();
  }
}

/// `value` rounded once to T. The 16-bit types convert from float only: float then holds the value
/// cut off, with its last bit set if anything was cut (round to odd), so that the second rounding
/// decides as if it saw the whole value.
/// Source: S. Boldo, G. Melquiond, "When double rounding is odd" (2005).
template <class T, class A>
T reference_round(A value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    float narrow = static_cast<float>(value);
    if (static_cast<A>(narrow) != value) {
      std::uint32_t bits;
      std::memcpy(&bits, &narrow, sizeof bits);
      if ((std::abs)(static_cast<A>(narrow)) > (std::abs)(value)) --bits;
      bits |= 1u;
      std::memcpy(&narrow, &bits, sizeof narrow);
    }
    return static_cast<T>(narrow);
  }
}

// An argument as a view: a Tensor4, a Tensor4Buffer, or an Eigen matrix, which is one head.
template <class T>
Tensor4<T> reference_view(const Tensor4<T>& tensor) {
  return tensor;
}
template <class T>
Tensor4<T> reference_view(Tensor4Buffer<T>& buffer) {
  return buffer.view();
}
template <class T>
Tensor4<const T> reference_view(const Tensor4Buffer<T>& buffer) {
  return buffer.view();
}
template <class Matrix, class = std::enable_if_t<has_eigen_memory_v<std::remove_const_t<Matrix>>>>
auto reference_view(Matrix& matrix) {
  return view_tokens(matrix, 1, 1);
}

/// Raises unless shapes and options are those of one call of attention.
inline void check_reference_call(const Shape4& q, const Shape4& k, const Shape4& v,
                                 const Shape4& out, const Shape4* weights,
                                 const Shape4* log_sum_exp, const AttentionOptions& options) {
  const auto divides = [&](Index heads) { return heads > 0 ? q.heads % heads == 0 : q.heads == 0; };
  const bool shapes_fit =
      (k.batch == q.batch || k.batch == 1) && (v.batch == q.batch || v.batch == 1) &&
      divides(k.heads) && divides(v.heads) && k.length == v.length && k.dim == q.dim &&
      out == Shape4{q.batch, q.heads, q.length, v.dim} &&
      (weights == nullptr || *weights == Shape4{q.batch, q.heads, q.length, k.length}) &&
      (log_sum_exp == nullptr || *log_sum_exp == Shape4{q.batch, q.heads, q.length, 1});
  if (!shapes_fit) {
    std::string text = "reference_attention: the shapes do not fit; got " + describe("q", q) +
                       ", " + describe("k", k) + ", " + describe("v", v) + ", " +
                       describe("out", out);
    if (weights != nullptr) text += ", " + describe("weights", *weights);
    if (log_sum_exp != nullptr) text += ", " + describe("log_sum_exp", *log_sum_exp);
    raise_shape_error(text);
  }
  if (!options.sinks.empty() && options.sinks.size() != q.heads) {
    raise_shape_error("reference_attention: sinks must hold one number a query head, " +
                      std::to_string(q.heads) + ", got " + std::to_string(options.sinks.size()));
  }
  const double p = options.dropout.probability;
  if (!(reference_is_finite(p) && p >= 0 && p <= 1)) {
    raise_option_error("reference_attention: dropout.probability must lie within 0 and 1, got " +
                       std::to_string(p));
  }
  if (!(reference_is_finite(options.softcap) && options.softcap >= 0)) {
    raise_option_error("reference_attention: softcap must be finite and 0 or more, got " +
                       std::to_string(options.softcap));
  }
  if (options.scale && !reference_is_finite(*options.scale)) {
    raise_option_error("reference_attention: scale must be finite, got " +
                       std::to_string(*options.scale));
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail

inline namespace ATTN_BUILD {

/// out(b, h, i) = sum over j of softmax_j(score(b, h, i, j)) * v(b, h, j), where
/// score = modify(softcap(scale * q . k), b, h, i, j) and only keys with allowed(b, h, i, j) count.
///
///   q [B, Hq, Sq, Dk]; k [B or 1, Hk, Sk, Dk]; v [B or 1, Hv, Sk, Dv]; out [B, Hq, Sq, Dv]
///   allowed  bool(b, h, i, j): false makes the key absent: neither its K nor its V is read.
///   modify   A(A score, b, h, i, j): biases, ALiBi, ...; -infinity makes the key absent.
///   options  scale, softcap, dropout and sinks; the others do not change what is computed.
///   extra    weights [B, Hq, Sq, Sk], log_sum_exp [B, Hq, Sq, 1]. Its type A is the type that
///            everything is computed in: double unless another is given; long double works too.
///
/// A row without keys: out 0, weights 0, log_sum_exp -infinity (the sink's value if there is one).
/// The weight of a dropped key is 0, and its V is not read. NaN scores make their row NaN.
/// Tensors may be views, buffers or Eigen matrices. Outputs must not overlap inputs (not tested
/// here).
/// Throws ShapeError, OptionError. Cost: 2 Sq Sk (Dk + Dv) flops a query head, one thread.
/// Error: that of the formula in A, as a plain loop has it, and one rounding to out's type.
template <class Q, class K, class V, class O, class Allowed, class Modify, class A = double>
void reference_attention(const Q& q_tensor, const K& k_tensor, const V& v_tensor, O&& out_tensor,
                         const Allowed& allowed, const Modify& modify,
                         const AttentionOptions& options = {}, AttentionOutputs<A> extra = {}) {
  const auto q = detail::reference_view(q_tensor);
  const auto k = detail::reference_view(k_tensor);
  const auto v = detail::reference_view(v_tensor);
  const auto out = detail::reference_view(out_tensor);
  const bool wants_weights = extra.weights.data() != nullptr;
  const bool wants_log_sum_exp = extra.log_sum_exp.data() != nullptr;
  detail::check_reference_call(q.shape(), k.shape(), v.shape(), out.shape(),
                               wants_weights ? &extra.weights.shape() : nullptr,
                               wants_log_sum_exp ? &extra.log_sum_exp.shape() : nullptr, options);
  const Index keys = k.length();
  const A default_scale = q.dim() > 0 ? A(1) / std::sqrt(static_cast<A>(q.dim())) : A(0);
  const A scale = options.scale ? static_cast<A>(*options.scale) : default_scale;
  const A softcap = static_cast<A>(options.softcap);
  const A keep_scale = A(1) / (A(1) - static_cast<A>(options.dropout.probability));
  const std::uint64_t drop_below = dropout_threshold(options.dropout.probability);

  std::vector<A> score(static_cast<std::size_t>(keys)), weight(static_cast<std::size_t>(keys));
  std::vector<bool> present(static_cast<std::size_t>(keys));

  for (Index b = 0; b < q.batch(); ++b) {
    const Index key_batch = k.batch() == 1 ? 0 : b, value_batch = v.batch() == 1 ? 0 : b;
    for (Index h = 0; h < q.heads(); ++h) {
      const Index key_head = h / (q.heads() / k.heads());
      const Index value_head = h / (q.heads() / v.heads());
      const RandomPlane random(RandomPlane::Stream::attention_weights, options.dropout.seed,
                               options.dropout.offset, b, h);
      const bool has_sink =
          !options.sinks.empty() && !detail::reference_is_minus_infinity(options.sinks[h]);
      const A sink = has_sink ? static_cast<A>(options.sinks[h]) : A(0);

      for (Index i = 0; i < q.length(); ++i) {
        // 1. Scores, and which keys are there at all.
        bool any_present = false;
        for (Index j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          present[at] = allowed(b, h, i, j);
          if (!present[at]) continue;
          A s = 0;
          for (Index d = 0; d < q.dim(); ++d) {
            s += static_cast<A>(q(b, h, i, d)) * static_cast<A>(k(key_batch, key_head, j, d));
          }
          s *= scale;
          if (softcap > 0) s = softcap * std::tanh(s / softcap);
          score[at] = static_cast<A>(modify(s, b, h, i, j));
          present[at] = !detail::reference_is_minus_infinity(score[at]);
          any_present = any_present || present[at];
        }

        // 2. The maximum; the sink is one more score, without a value.
        A maximum = has_sink ? sink : std::numeric_limits<A>::lowest();
        for (Index j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (present[at] && score[at] > maximum) maximum = score[at];
        }

        // 3. The softmax.
        A denominator = has_sink ? std::exp(sink - maximum) : A(0);
        for (Index j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          weight[at] = present[at] ? std::exp(score[at] - maximum) : A(0);
          denominator += weight[at];
        }
        for (Index j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (present[at]) weight[at] /= denominator;
        }

        // 4. Dropout.
        if (drop_below > 0) {
          for (Index j = 0; j < keys; ++j) {
            const auto at = static_cast<std::size_t>(j);
            const bool dropped = random.bits(i, j) < drop_below;
            present[at] = present[at] && !dropped;
            weight[at] = present[at] ? weight[at] * keep_scale : A(0);
          }
        }

        // 5. Times V.
        for (Index d = 0; d < v.dim(); ++d) {
          A sum = 0;
          for (Index j = 0; j < keys; ++j) {
            const auto at = static_cast<std::size_t>(j);
            if (present[at]) {
              sum += weight[at] * static_cast<A>(v(value_batch, value_head, j, d));
            }
          }
          out(b, h, i, d) = detail::reference_round<typename decltype(out)::Value>(sum);
        }
        if (wants_weights) {
          for (Index j = 0; j < keys; ++j) {
            extra.weights(b, h, i, j) = weight[static_cast<std::size_t>(j)];
          }
        }
        if (wants_log_sum_exp) {
          A& log_sum_exp = extra.log_sum_exp(b, h, i, 0);
          if (any_present || has_sink) {
            log_sum_exp = maximum + std::log(denominator);
          } else {
            detail::reference_set_minus_infinity(log_sum_exp);
          }
        }
      }
    }
  }
}

}  // namespace ATTN_BUILD
}  // namespace attn

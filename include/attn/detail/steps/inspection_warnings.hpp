// attn/detail/steps/inspection_warnings.hpp - level 8: what looks wrong in a call, in plain
// sentences.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/rows/transfer.hpp"
#include "attn/detail/text/numbers.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Warns of numbers in one head's rows of q, k or v that are infinite or NaN. `is_seen(row)`:
/// whether the row can reach the output.
template <class A, class Seen>
void warn_of_non_finite(const char* name, const char* row_name, const TensorRef& tensor,
                        const AttentionCall<A>& call, Index head, const Seen& is_seen,
                        std::vector<std::string>& warnings) {
  const Index batch = tensor.shape.batch == 1 ? 0 : call.part.first_batch;
  std::vector<A> line(static_cast<std::size_t>(tensor.shape.dim));
  Index count = 0;
  bool any_seen = false;
  std::string first;
  for (Index i = 0; i < tensor.shape.length; ++i) {
    load_row(tensor, tensor.offset(batch, head, i, 0), line.data(), call.kernels.table->set);
    for (std::size_t d = 0; d < line.size(); ++d) {
      if (is_finite(line[d])) continue;
      if (count++ == 0) {
        first = std::string(row_name) + " " + std::to_string(i) + ", dim " + std::to_string(d);
      }
      any_seen = any_seen || is_seen(i);
    }
  }
  if (count == 0) return;
  warnings.push_back(std::string(name) + " holds " + std::to_string(count) +
                     (count == 1 ? " number that is" : " numbers that are") +
                     " infinite or NaN, the first at " + first +
                     (any_seen ? "" : "; no query sees such a key, so it does no harm"));
}

/// What a mask or bias tensor, which broadcasts, does to the scores [B, Hq, Sq, Sk] of a call.
struct MaskTensor {
  const char* name;
  Role role;
  TensorRef view;
  Shape4 scores;
  Index batch, head;

  double operator()(Index b, Index h, Index i, Index j) const {
    double value = 0;
    view.format->load(view.data, view.offset(b, h, i, j), 1, 1, &value, InstructionSet::generic);
    return role == Role::bias ? value : value != 0;
  }
  /// Whether all entries that belong to the inspected head satisfy holds(value, query, key).
  template <class Test>
  bool all_of_head(const Test& holds) const {
    for (Index i = 0; i < scores.length; ++i) {
      for (Index j = 0; j < scores.dim; ++j) {
        if (!holds((*this)(batch, head, i, j), i, j)) return false;
      }
    }
    return true;
  }
  /// The same of all its own entries.
  template <class Test>
  bool all(const Test& holds) const {
    const Shape4& s = view.shape;
    for (Index b = 0; b < s.batch; ++b) {
      for (Index h = 0; h < s.heads; ++h) {
        for (Index i = 0; i < s.length; ++i) {
          for (Index j = 0; j < s.dim; ++j) {
            if (!holds((*this)(b, h, i, j))) return false;
          }
        }
      }
    }
    return true;
  }
};

inline void warn_of_shape(const MaskTensor& mask, std::vector<std::string>& warnings) {
  const Shape4 &s = mask.view.shape, &scores = mask.scores;
  const std::string name = describe(mask.name, s);
  if (s.dim == 1 && s.length > 1 && scores.length == scores.dim) {
    warnings.push_back(name + " has one entry a query, the same for all keys; entries a key " +
                       "(padding) have the shape [batch, 1, 1, keys]");
  }
  if (s.length == 1 && s.batch == 1 && s.heads > 1 && scores.batch == scores.heads) {
    warnings.push_back(name + " has other entries for each head, the same for all batches; " +
                       "entries a batch (padding) have the shape [batch, 1, 1, keys]");
  }
}

inline void warn_of_boolean(const MaskTensor& mask, std::vector<std::string>& warnings) {
  const std::string name = describe(mask.name, mask.view.shape);
  const double kept = mask.role == Role::keep_mask ? 1 : 0;
  if (mask.all([=](double value) { return value == kept; })) {
    warnings.push_back(name + " drops nothing");
  }
  if (mask.all_of_head([=](double value, Index, Index) { return value != kept; })) {
    warnings.push_back(name + " drops every key of this head; keep_where keeps and drop_where " +
                       "drops where the mask is true");
  }
  // A causal mask keeps j <= i. Its opposite keeps j > i, its transpose j >= i.
  const bool is_square = mask.scores.length == mask.scores.dim && mask.scores.length > 1;
  const auto keeps_above = [&](Index diagonal) {
    return mask.all_of_head(
        [=](double value, Index i, Index j) { return (value == kept) == (j >= i + diagonal); });
  };
  if (is_square && (keeps_above(0) || keeps_above(1))) {
    warnings.push_back(name + " keeps the keys after each query and drops those before: a causal " +
                       "mask of the other polarity, or transposed");
  }
}

inline void warn_of_bias(const MaskTensor& mask, std::vector<std::string>& warnings) {
  const std::string name = describe(mask.name, mask.view.shape);
  // A padding constant (-1e9, -65504, lowest()), which no bias of a model comes near.
  constexpr double kMaskLike = -1e4;
  double lowest = 0;
  mask.all_of_head([&](double value, Index, Index) {
    if (is_finite(value) && value < lowest) lowest = value;
    return true;
  });
  if (lowest <= kMaskLike) {
    warnings.push_back(name + " holds " + general(lowest) +
                       ": a finite bias never masks by itself, and a row full of it attends " +
                       "evenly; use -infinity, keep_where or drop_where");
  }
  bool has_zero = false, has_one = false;
  const bool is_flags = mask.all([&](double value) {
    has_zero = has_zero || value == 0;
    has_one = has_one || value == 1;
    return value == 0 || value == 1;
  });
  if (is_flags && has_zero && has_one) {
    warnings.push_back(name + " holds nothing but 0 and 1, which are added to the scores; flags " +
                       "are for keep_where or drop_where");
  }
}

/// `tensors`: those of the call, masks among them.
template <class A, class Inspection>
std::vector<std::string> inspection_warnings(const AttentionCall<A>& call,
                                             Span<const NamedTensor> tensors,
                                             const Inspection& result) {
  std::vector<std::string> warnings;
  const Index queries = call.sizes.query_length, keys = call.sizes.key_length;
  const auto is_seen = [&](Index i, Index j) {
    return !is_negative_infinity(result.masked.values(0, 0, i, j));
  };
  const auto key_is_seen = [&](Index key) {
    for (Index i = 0; i < queries; ++i) {
      if (is_seen(i, key)) return true;
    }
    return false;
  };
  warn_of_non_finite(
      "q", "query", call.q, call, result.head, [](Index) { return true; }, warnings);
  warn_of_non_finite("k", "key", call.source.keys, call, result.key_head, key_is_seen, warnings);
  warn_of_non_finite("v", "key", call.source.values, call, result.value_head, key_is_seen,
                     warnings);
  for (Index at = 0; result.masked.not_finite > 0 && at < queries * keys; ++at) {
    const Index i = at / keys, j = at % keys;
    if (!is_seen(i, j) || is_finite(result.masked.values(0, 0, i, j))) continue;
    const Index count = result.masked.not_finite;
    warnings.push_back(std::to_string(count) + (count == 1 ? " score" : " scores") +
                       " of keys that are seen: +infinity or NaN, the first of query " +
                       std::to_string(i) + " with key " + std::to_string(j) +
                       "; such a query's row is NaN");
    break;
  }

  Index empty_rows = 0, first_empty = 0;
  for (Index i = queries; i-- > 0;) {
    if (result.masked_keys[static_cast<std::size_t>(i)] != keys) continue;
    ++empty_rows;
    first_empty = i;
  }
  if (empty_rows > 0) {
    warnings.push_back(std::to_string(empty_rows) + " of " + std::to_string(queries) +
                       " queries see no key, the first is query " + std::to_string(first_empty) +
                       ": their weights and output are 0");
  }

  for (const NamedTensor& tensor : tensors) {
    const TensorRef& view = tensor.tensor;
    if (tensor.role == Role::input || tensor.role == Role::output) continue;
    if (view.shape.size() == 0 || queries * keys == 0) continue;
    const MaskTensor mask{
        tensor.name,  tensor.role,
        view,         Shape4{call.q.shape.batch, call.sizes.num_heads, queries, keys},
        result.batch, result.head};
    warn_of_shape(mask, warnings);
    if (mask.role == Role::bias) {
      warn_of_bias(mask, warnings);
    } else {
      warn_of_boolean(mask, warnings);
    }
  }
  return warnings;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/text/inspection_text.hpp - level 3: a look inside attention as text for people.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/detail/text/text.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Writes an AttentionInspection, which it takes as `Inspection`.
template <class Inspection>
class InspectionText {
 public:
  explicit InspectionText(const Inspection& inspection)
      : of_(inspection),
        queries_(inspection.masked.values.shape().length),
        keys_(inspection.masked.values.shape().dim) {}

  std::string text() const {
    std::string text = header() + '\n' + steps() + '\n' + rows();
    if (queries_ <= kMaxRows && keys_ <= kMaxColumns && queries_ * keys_ > 0) {
      text += '\n' + matrix("masked scores", of_.masked, 3);
      text += '\n' + matrix("weights", of_.weights, 4);
    }
    if (!of_.warnings.empty()) text += '\n';
    for (const std::string& warning : of_.warnings) text += "  warning: " + warning + '\n';
    return text;
  }

 private:
  using Table = std::vector<std::vector<std::string>>;
  // What a terminal shows without wrapping and scrolling.
  static constexpr Index kMaxColumns = 12, kMaxRows = 16;

  static std::string number(Index value) { return std::to_string(value); }
  template <class A>
  static std::string real(A value) {
    return general(static_cast<double>(value));
  }
  bool is_seen(Index i, Index j) const {
    return !is_negative_infinity(of_.masked.values(0, 0, i, j));
  }

  std::string header() const {
    return "attention of batch " + number(of_.batch) + ", query head " + number(of_.head) +
           " (key head " + number(of_.key_head) + ", value head " + number(of_.value_head) +
           ")\n  " + describe("q", of_.q) + ", " + describe("k", of_.k) + ", " +
           describe("v", of_.v) + "; query 0 stands at key " + number(of_.query_offset) + '\n';
  }

  std::string steps() const {
    Index absent = 0;
    for (const Index count : of_.masked_keys) absent += count;
    const Index pairs = queries_ * keys_;
    const double share =
        pairs == 0 ? 0 : 100 * static_cast<double>(absent) / static_cast<double>(pairs);
    const std::string sink = is_negative_infinity(of_.sink) ? "" : ", sink " + real(of_.sink);
    const std::string dropout = of_.dropout > 0 ? ", dropout " + general(of_.dropout) : "";

    Table table = {{"step", "size", "min", "max", "not finite"}};
    const auto add = [&](const std::string& name, const auto& step) {
      const Shape4& s = step.values.shape();
      table.push_back({name, number(s.length) + " x " + number(s.dim), real(step.min),
                       real(step.max), number(step.not_finite)});
    };
    add("raw         q . k", of_.raw);
    add("scaled      raw x " + real(of_.scale), of_.scaled);
    add("softcapped  " + (of_.softcap > 0 ? "at " + real(of_.softcap) : "no cap"), of_.softcapped);
    add("biased      biases, score functions", of_.biased);
    add("masked      " + number(absent) + " of " + number(pairs) + " absent, " + fixed(share, 1) +
            " %",
        of_.masked);
    add("weights     softmax" + sink + dropout, of_.weights);
    add("output      weights x v", of_.output);
    return text_table(table, "  ");
  }

  std::string rows() const {
    Table table = {{"query", "keys seen", "absent", "largest weight", "of key", "sum of weights",
                    "log-sum-exp"}};
    for (Index i = 0; i < (std::min)(queries_, kMaxRows); ++i) {
      const auto row = static_cast<std::size_t>(i);
      std::string weight = "-", key = "-";
      if (const Index largest = largest_weight(i); largest >= 0) {
        weight = fixed(static_cast<double>(of_.weights.values(0, 0, i, largest)), 6);
        key = number(largest);
      }
      table.push_back({number(i), number(keys_ - of_.masked_keys[row]),
                       number(of_.masked_keys[row]), weight, key,
                       fixed(static_cast<double>(of_.row_sums[row]), 6),
                       real(of_.log_sum_exp(0, 0, i, 0))});
    }
    std::string text = text_table(table, "  ");
    if (queries_ > kMaxRows) text += "  and " + number(queries_ - kMaxRows) + " more queries\n";
    return text;
  }
  /// The key with the largest weight of a row; -1 if it sees none, or none that is a number.
  Index largest_weight(Index i) const {
    Index largest = -1;
    for (Index j = 0; j < keys_; ++j) {
      const auto weight = of_.weights.values(0, 0, i, j);
      if (!is_seen(i, j) || is_nan(weight)) continue;
      if (largest < 0 || weight > of_.weights.values(0, 0, i, largest)) largest = j;
    }
    return largest;
  }

  /// One line a query, a dot for an absent key.
  template <class Step>
  std::string matrix(const char* title, const Step& step, int decimals) const {
    Table table = {{title}};
    for (Index j = 0; j < keys_; ++j) table[0].push_back("key " + number(j));
    for (Index i = 0; i < queries_; ++i) {
      table.push_back({"  query " + number(i)});
      for (Index j = 0; j < keys_; ++j) {
        const double value = static_cast<double>(step.values(0, 0, i, j));
        table.back().push_back(is_seen(i, j) ? fixed(value, decimals) : ".");
      }
    }
    return text_table(table, "  ");
  }

  const Inspection& of_;
  Index queries_, keys_;
};

template <class Inspection>
std::string inspection_text(const Inspection& inspection) {
  return InspectionText<Inspection>(inspection).text();
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

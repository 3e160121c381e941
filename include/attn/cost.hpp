// attn/cost.hpp - level 14: what attention layers cost: parameters, flops, bytes of cache.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/projection/layer_sizes.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/detail/text/text.hpp"
#include "attn/error.hpp"
#include "attn/layers/attention_config.hpp"

namespace attn {

/// The cost of one layer. Flops count a multiplication and an addition as two; softmax, biases and
/// masks are left out, and attention is counted without a mask (a causal one halves it).
struct AttentionCost {
  std::string name;
  AttentionConfig config;    ///< with all defaults filled in
  Index parameters = 0;      ///< weights, and biases if the config has them
  double prefill_flops = 0;  ///< `length` tokens at once
  double decode_flops = 0;   ///< one more token that sees `length` keys, its own included
  Index cache_bytes = 0;     ///< of keys and values, for each token
  double cache_of_mha = 0;   ///< cache_bytes as a share of multi-head attention's
};

namespace detail {
inline namespace ATTN_BUILD {

inline std::string cost_text(const std::vector<AttentionCost>& rows) {
  std::vector<std::vector<std::string>> cells = {{"attention", "K/V heads", "parameters",
                                                  "prefill GFLOP", "decode MFLOP", "cache B/token",
                                                  "of MHA"}};
  for (const AttentionCost& row : rows) {
    cells.push_back({row.name, std::to_string(row.config.num_kv_heads),
                     std::to_string(row.parameters), fixed(row.prefill_flops * 1e-9, 3),
                     fixed(row.decode_flops * 1e-6, 3), std::to_string(row.cache_bytes),
                     fixed(row.cache_of_mha, 3)});
  }
  return text_table(cells, "");
}

}  // namespace ATTN_BUILD
}  // namespace detail

/// Layers of one model side by side.
struct AttentionCostTable {
  Index length = 0;         ///< tokens
  Index element_bytes = 0;  ///< of a cached number
  std::vector<AttentionCost> rows;

  /// As aligned text, one row a layer.
  ATTN_ALWAYS_INLINE std::string to_string() const { return detail::cost_text(rows); }
};

ATTN_ALWAYS_INLINE std::ostream& operator<<(std::ostream& stream, const AttentionCostTable& table) {
  return stream << table.to_string();
}

inline namespace ATTN_BUILD {

/// The cost of a layer of this config at `length` tokens:
///
///   weights  = H Dk (model_dim) + Hkv Dk key_input_dim + Hkv Dv value_input_dim + H Dv model_dim
///   prefill  = 2 length weights + 2 H length^2 (Dk + Dv)
///   decode   = 2 weights + 2 H length (Dk + Dv)
///   cache    = Hkv (Dk + Dv) element_bytes for each token
///
/// Throws: OptionError for a config that no layer takes, a negative length, or a size that
/// overflows.
inline AttentionCost attention_cost(const std::string& name, const AttentionConfig& config,
                                    Index length, Index element_bytes = 4) {
  AttentionCost cost;
  cost.name = name;
  cost.config = detail::resolve_config("attention_cost", config);
  if (length < 0 || element_bytes < 0) {
    detail::raise_option_error("attention_cost: length and element_bytes must be 0 or more, got " +
                               std::to_string(length) + " and " + std::to_string(element_bytes));
  }
  const AttentionConfig& c = cost.config;
  const detail::LayerSizes sizes(c);  // which fit, or the config would have been refused
  const detail::CheckedSize cache_bytes = (sizes.key + sizes.value) * element_bytes;
  if (!cache_bytes.fits()) {
    detail::raise_option_error(
        "attention_cost: the bytes of a cached token overflow; got num_kv_heads " +
        std::to_string(c.num_kv_heads) + ", head_dim " + std::to_string(c.head_dim) +
        ", value_dim " + std::to_string(c.value_dim) + ", element_bytes " +
        std::to_string(element_bytes));
  }
  cost.parameters = sizes.weights.value() + (c.bias ? sizes.biases.value() : 0);
  const double tokens = static_cast<double>(length);
  const double flops_of_weights = 2 * static_cast<double>(sizes.weights.value());
  const double flops_of_a_query =
      2 * tokens * static_cast<double>((sizes.query + sizes.heads).value());
  cost.prefill_flops = tokens * (flops_of_weights + flops_of_a_query);
  cost.decode_flops = flops_of_weights + flops_of_a_query;
  cost.cache_bytes = cache_bytes.value();
  cost.cache_of_mha = static_cast<double>(c.num_kv_heads) / static_cast<double>(c.num_heads);
  return cost;
}

/// The same model with multi-head, grouped-query (if the config says so), multi-query attention,
/// and with one wide head in the place of many: what the choice among them costs.
inline AttentionCostTable attention_costs(const AttentionConfig& config, Index length,
                                          Index element_bytes = 4) {
  const AttentionConfig resolved = detail::resolve_config("attention_costs", config);
  AttentionCostTable table{length, element_bytes, {}};
  const auto add = [&](const std::string& name, const AttentionConfig& layer) {
    table.rows.push_back(attention_cost(name, layer, length, element_bytes));
  };
  AttentionConfig layer = resolved;
  layer.num_kv_heads = resolved.num_heads;
  add("multi-head", layer);
  if (resolved.num_kv_heads != 1 && resolved.num_kv_heads != resolved.num_heads) {
    add("grouped-query", resolved);
  }
  layer.num_kv_heads = 1;
  add("multi-query", layer);
  layer.num_heads = 1;
  layer.head_dim = resolved.num_heads * resolved.head_dim;
  layer.value_dim = resolved.num_heads * resolved.value_dim;
  add("single head", layer);
  return table;
}

}  // namespace ATTN_BUILD
}  // namespace attn

// attn/detail/projection/layer_sizes.hpp - level 13: the sizes of a layer, checked and filled in.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <string>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/error.hpp"
#include "attn/layers/attention_config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The numbers of a layer's projections, of a config with its defaults filled in.
struct LayerSizes {
  CheckedSize query, key, value, heads;  ///< features: of all query heads, ..., of what they return
  CheckedSize weights, biases;           ///< those of the output among them

  explicit LayerSizes(const AttentionConfig& c)
      : query(CheckedSize(c.num_heads) * c.head_dim),
        key(CheckedSize(c.num_kv_heads) * c.head_dim),
        value(CheckedSize(c.num_kv_heads) * c.value_dim),
        heads(CheckedSize(c.num_heads) * c.value_dim),
        weights(query * c.model_dim + key * c.key_input_dim + value * c.value_input_dim +
                heads * c.model_dim),
        biases(query + key + value + c.model_dim) {}

  /// Whether the layer fits into memory, in elements of any type.
  bool fit() const { return ((weights + biases) * Index{sizeof(double)}).fits(); }
};

/// The config with its defaults filled in, or an OptionError in the name of `owner`. `kv_heads`:
/// how many key and value heads its class has; 0: any number.
inline AttentionConfig resolve_config(const char* owner, AttentionConfig config,
                                      Index kv_heads = 0) {
  const auto expect = [&](bool holds, const char* rule, const char* name_a, Index a,
                          const char* name_b = nullptr, Index b = 0) {
    if (holds) return;
    std::string text = std::string(owner) + ": " + rule + "; got " + name_a + ' ';
    text += std::to_string(a);
    if (name_b != nullptr) text += std::string(", ") + name_b + ' ' + std::to_string(b);
    raise_option_error(text);
  };
  const auto require_at_least = [&](Index least, const char* name, Index value) {
    expect(value >= least,
           least == 0 ? "a size must not be negative" : "model_dim and num_heads must be given",
           name, value);
  };
  require_at_least(1, "model_dim", config.model_dim);
  require_at_least(1, "num_heads", config.num_heads);
  require_at_least(0, "num_kv_heads", config.num_kv_heads);
  require_at_least(0, "head_dim", config.head_dim);
  require_at_least(0, "value_dim", config.value_dim);
  require_at_least(0, "key_input_dim", config.key_input_dim);
  require_at_least(0, "value_input_dim", config.value_input_dim);

  if (config.num_kv_heads == 0) config.num_kv_heads = kv_heads == 0 ? config.num_heads : kv_heads;
  expect(kv_heads == 0 || config.num_kv_heads == kv_heads,
         kv_heads == 1 ? "num_kv_heads must be 1 (GroupedQueryAttention has any number)"
                       : "num_kv_heads must be num_heads (GroupedQueryAttention has any number)",
         "num_kv_heads", config.num_kv_heads, "num_heads", config.num_heads);
  expect(config.num_heads % config.num_kv_heads == 0, "num_heads must be divisible by num_kv_heads",
         "num_heads", config.num_heads, "num_kv_heads", config.num_kv_heads);
  if (config.head_dim == 0) {
    expect(config.model_dim % config.num_heads == 0,
           "model_dim must be divisible by num_heads, or head_dim given", "model_dim",
           config.model_dim, "num_heads", config.num_heads);
    config.head_dim = config.model_dim / config.num_heads;
  }
  if (config.value_dim == 0) config.value_dim = config.head_dim;
  if (config.key_input_dim == 0) config.key_input_dim = config.model_dim;
  if (config.value_input_dim == 0) config.value_input_dim = config.model_dim;
  if (!LayerSizes(config).fit()) {
    raise_option_error(
        std::string(owner) + ": too many weights, their size in bytes overflows; got model_dim " +
        std::to_string(config.model_dim) + ", num_heads " + std::to_string(config.num_heads) +
        ", num_kv_heads " + std::to_string(config.num_kv_heads) + ", head_dim " +
        std::to_string(config.head_dim) + ", value_dim " + std::to_string(config.value_dim) +
        ", key_input_dim " + std::to_string(config.key_input_dim) + ", value_input_dim " +
        std::to_string(config.value_input_dim));
  }
  return config;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

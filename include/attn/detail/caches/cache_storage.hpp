// attn/detail/caches/cache_storage.hpp - level 10: from the sizes of a cache to its memory.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <optional>
#include <string>

#include "attn/caches/cache_shape.hpp"
#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/error.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

/// The memory of a cache.
struct CacheStorage {
  Shape4 keys, values;
  std::optional<Index> value_columns;  ///< set: values are so many first columns of the keys
};

inline namespace ATTN_BUILD {

inline bool has_window(const CacheShape& shape) {
  return shape.window != 0 || shape.longest_append != 1 || shape.first_tokens != 0;
}
inline bool has_pages(const CacheShape& shape) {
  return shape.num_pages != 0 || shape.page_length != 0;
}

[[noreturn]] ATTN_COLD inline void raise_cache_shape(const char* cache, const char* rule,
                                                     const CacheShape& shape) {
  std::string text = std::string(cache) + ": " + rule + "; got batch ";
  text += std::to_string(shape.batch);
  const auto add = [&](const char* name, Index value) {
    text += std::string(", ") + name + ' ' + std::to_string(value);
  };
  add("num_kv_heads", shape.num_kv_heads);
  add("head_dim", shape.head_dim);
  add("value_dim", shape.value_dim.value_or(shape.head_dim));
  const bool names_no_cache = !shape.capacity && !has_window(shape) && !has_pages(shape);
  if (shape.capacity) add("capacity", *shape.capacity);
  if (has_window(shape) || names_no_cache) {
    add("window", shape.window);
    add("longest_append", shape.longest_append);
    if (shape.first_tokens != 0) add("first_tokens", shape.first_tokens);
  }
  if (has_pages(shape) || names_no_cache) {
    add("num_pages", shape.num_pages);
    add("page_length", shape.page_length);
  }
  if (shape.values_in_keys) text += ", values in keys";
  raise_shape_error(text);
}

/// The storage of a cache whose rows lie in `planes` of `rows` tokens a head. Refuses sizes that
/// are negative or overflow; `sequence_bytes` are what a sequence takes beside.
inline CacheStorage cache_storage(const char* cache, const CacheShape& shape, Index planes,
                                  CheckedSize rows, CheckedSize sequence_bytes,
                                  Index element_size) {
  const Index value_dim = shape.value_dim.value_or(shape.head_dim);
  for (const Index size : {shape.batch, shape.num_kv_heads, shape.head_dim, value_dim,
                           shape.capacity.value_or(0), shape.first_tokens, planes}) {
    if (size < 0) raise_cache_shape(cache, "a size must not be negative", shape);
  }
  CacheStorage storage;
  storage.keys = {planes, shape.num_kv_heads, rows.value(), shape.head_dim};
  storage.values = {planes, shape.num_kv_heads, rows.value(), value_dim};
  if (shape.values_in_keys) {
    if (value_dim > shape.head_dim) {
      raise_cache_shape(cache, "values in keys have a value_dim of head_dim or less", shape);
    }
    storage.values.dim = 0;
    storage.value_columns = value_dim;
  }
  if (!rows.fits() || !is_possible(storage.keys, element_size) ||
      !is_possible(storage.values, element_size) || !(sequence_bytes * shape.batch).fits()) {
    raise_cache_shape(cache, "too large, its size in bytes overflows", shape);
  }
  return storage;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

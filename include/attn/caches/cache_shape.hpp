// attn/caches/cache_shape.hpp - level 3: the sizes of a cache, by name.
#pragma once

#include <optional>

#include "attn/config.hpp"

namespace attn {

/// The sizes of a cache of keys and values. All caches take the first four members; each of the
/// others belongs to those that stand beside it, and no other cache accepts it.
///
///   CacheShape shape;                              // C++20: KeyValueCache<float> cache(
///   shape.batch = 2;                               //   {.batch = 2, .num_kv_heads = 8,
///   shape.num_kv_heads = 8;                        //    .head_dim = 128, .capacity = 4096});
///   shape.head_dim = 128;
///   shape.capacity = 4096;
///   KeyValueCache<float> cache(shape);
struct CacheShape {
  Index batch = 1;                 ///< sequences
  Index num_kv_heads = 0;          ///< heads of keys, and of values
  Index head_dim = 0;              ///< of keys
  std::optional<Index> value_dim;  ///< of values. Unset: head_dim

  /// Tokens that a sequence can hold. KeyValueCache: to be given. PagedKeyValueCache: unset, as
  /// many as all pages together; a smaller one keeps page tables and workspaces small.
  std::optional<Index> capacity;
  Index window = 0;          ///< RollingKeyValueCache: keys that a query sees; at least 1
  Index longest_append = 1;  ///< RollingKeyValueCache: tokens that may come at once; at least 1
  Index first_tokens = 0;    ///< RollingKeyValueCache: so many first tokens stay for ever
  Index num_pages = 0;       ///< PagedKeyValueCache: pages in the pool
  Index page_length = 0;     ///< PagedKeyValueCache: tokens of a page; at least 1

  /// All caches: values are the first value_dim elements of their keys, as in latent attention, and
  /// are stored as such, once. append(k) takes the place of append(k, v) then.
  bool values_in_keys = false;
};

}  // namespace attn

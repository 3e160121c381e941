// attn/detail/caches/token_cache.hpp - level 10: what all caches share: their sequences, and how
// tokens are checked, stored and taken back.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <optional>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/caches/stored_rows.hpp"
#include "attn/detail/caches/stored_tokens.hpp"
#include "attn/detail/caches/token_checks.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
/// What the caches have in common. `Cache` derives from this, tells what StoredTokens asks for,
/// and, where it has more to do than nothing:
///   make_room(call, first, sequences, counts)   before tokens are stored; raises if they don't fit
///   check_cut(lengths)                          before any is cut; raises if one may not be
template <class Cache, class T>
class TokenCache : public StoredTokens<Cache, T> {
  using Base = StoredTokens<Cache, T>;

  static_assert(is_element_v<T>,
                "attn: the element type of a cache must be double, float, Eigen::half or "
                "Eigen::bfloat16");

 public:
  using Element = T;

  ATTN_ALWAYS_INLINE Index num_kv_heads() const { return cache().key_storage().heads(); }
  ATTN_ALWAYS_INLINE Index head_dim() const { return cache().key_storage().dim(); }
  ATTN_ALWAYS_INLINE Index value_dim() const { return cache().value_storage().dim(); }

  /// Appends n tokens to every sequence: k [B, Hk, n, Dk], v [B, Hv, n, Dv], of any element types
  /// and strides. Throws ShapeError, and nothing changes, if they do not fit.
  template <class K, class V, std::enable_if_t<is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void append(const K& k, const V& v) {
    append(k, v, PerBatch(ArgumentOf<K>::view(k).length()));
  }
  /// Sequence b appends the last counts[b] of the n tokens; those before are padding. (The last
  /// ones, since the last query of a call stands at the last key.)
  template <class K, class V, std::enable_if_t<is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void append(const K& k, const V& v, PerBatch counts) {
    check_form(Cache::kFunctions.append, Base::values_in_keys(), false);
    append_range(Cache::kFunctions.append, 0, Base::batch(), ArgumentOf<K>::view(k),
                 ArgumentOf<V>::view(v), counts);
  }
  /// Appends k [1, Hk, n, Dk] and v [1, Hv, n, Dv] to sequence b alone.
  template <class K, class V>
  ATTN_ALWAYS_INLINE void append_to(Index b, const K& k, const V& v) {
    check_form(Cache::kFunctions.append_to, Base::values_in_keys(), false);
    check_sequence(Cache::kFunctions.append_to, b, Base::batch());
    append_range(Cache::kFunctions.append_to, b, 1, ArgumentOf<K>::view(k), ArgumentOf<V>::view(v),
                 PerBatch(ArgumentOf<K>::view(k).length()));
  }
  /// The same for caches whose values lie in their keys.
  template <class K>
  ATTN_ALWAYS_INLINE void append(const K& k) {
    append(k, PerBatch(ArgumentOf<K>::view(k).length()));
  }
  template <class K>
  ATTN_ALWAYS_INLINE void append(const K& k, PerBatch counts) {
    check_form(Cache::kFunctions.append, Base::values_in_keys(), true);
    const auto keys = ArgumentOf<K>::view(k);
    append_range(Cache::kFunctions.append, 0, Base::batch(), keys, first_columns(keys, value_dim()),
                 counts);
  }
  template <class K>
  ATTN_ALWAYS_INLINE void append_to(Index b, const K& k) {
    check_form(Cache::kFunctions.append_to, Base::values_in_keys(), true);
    check_sequence(Cache::kFunctions.append_to, b, Base::batch());
    const auto keys = ArgumentOf<K>::view(k);
    append_range(Cache::kFunctions.append_to, b, 1, keys, first_columns(keys, value_dim()),
                 PerBatch(keys.length()));
  }

  /// Takes back the tokens behind the first length[b] of each sequence, as after speculative
  /// decoding. Throws ShapeError, and nothing changes, if a sequence holds fewer.
  ATTN_ALWAYS_INLINE void truncate(PerBatch length) {
    check_truncation(Cache::kFunctions.truncate, Base::lengths(), length);
    cache().check_cut(length);
    for (Index b = 0; b < Base::batch(); ++b) Base::set_length(b, length[b]);
  }
  /// Forgets all tokens.
  ATTN_ALWAYS_INLINE void reset() {
    for (Index b = 0; b < Base::batch(); ++b) Base::set_length(b, 0);
  }
  /// Forgets the tokens of sequence b, whose place another one may take.
  ATTN_ALWAYS_INLINE void reset(Index b) {
    check_sequence(Cache::kFunctions.reset, b, Base::batch());
    Base::set_length(b, 0);
  }

  /// Whether the cache lets go of tokens that it was given.
  static constexpr bool kForgets = false;
  /// The first token of sequence b that is held once `count` more have been appended to each.
  ATTN_ALWAYS_INLINE Index first_held_after(Index, Index) const { return 0; }
  /// What the kernel will read once each sequence has appended `counts` tokens. Valid until the
  /// cache changes.
  ATTN_ALWAYS_INLINE KeyValueSource source_after(const PerBatch& counts) {
    KeyValueSource source = cache().source();
    const Span<Index> ends(Base::scratch(), Base::batch());
    source.length = 0;
    for (Index b = 0; b < ends.size(); ++b) {
      ends[b] = add_within_range(Base::length(b), counts[b]);
      source.length = (std::max)(source.length, ends[b]);
    }
    source.end = Base::per_batch(Span<const Index>(ends));
    source.key_shape.length = source.value_shape.length = source.length;
    return source;
  }
  /// The mask of a call: what the cache adds to it.
  template <class M>
  ATTN_ALWAYS_INLINE const M& mask_with(const M& mask) const {
    return mask;
  }

 protected:
  ATTN_ALWAYS_INLINE TokenCache() = default;
  ATTN_ALWAYS_INLINE explicit TokenCache(Index batch,
                                         const std::optional<Index>& value_columns = std::nullopt)
      : Base(batch, value_columns) {}

  ATTN_ALWAYS_INLINE void make_room(const CallShapes&, Index, Index, const PerBatch&) {}
  ATTN_ALWAYS_INLINE void check_cut(const PerBatch&) const {}
  ATTN_ALWAYS_INLINE KeyValueSource source_from(const PerBatch& first_keys, Index capacity) const {
    const Index longest = Base::longest_length();
    KeyValueSource source;
    source.keys = TensorRef(cache().key_storage());
    source.values = TensorRef(cache().value_storage());
    source.map = cache().key_map();
    source.key_shape = {Base::batch(), source.keys.shape.heads, longest, source.keys.shape.dim};
    source.value_shape = {Base::batch(), source.values.shape.heads, longest,
                          source.values.shape.dim};
    source.length = longest;
    source.begin = first_keys;
    source.end = Base::per_batch_lengths();
    source.capacity = capacity;
    source.matrix_products = matrix_products_of<T, T>();
    return source;
  }

 private:
  ATTN_ALWAYS_INLINE Cache& cache() { return static_cast<Cache&>(*this); }
  ATTN_ALWAYS_INLINE const Cache& cache() const { return static_cast<const Cache&>(*this); }

  template <class K, class V>
  ATTN_ALWAYS_INLINE void append_range(const char* function, Index first, Index sequences,
                                       const Tensor4<K>& new_keys, const Tensor4<V>& new_values,
                                       const PerBatch& counts) {
    CallShapes call(function);
    check_tokens(call, TensorRef(cache().key_storage()), TensorRef(cache().value_storage()),
                 sequences, TensorRef(new_keys), TensorRef(new_values), counts,
                 Base::values_in_keys());
    cache().make_room(call, first, sequences, counts);
    const Tensor4<T> keys = cache().key_storage(), values = cache().value_storage();
    const KeyMap map = cache().key_map();
    for (Index i = 0; i < sequences; ++i) {
      const Index b = first + i, position = Base::length(b), count = counts[i];
      const Index first_row = new_keys.length() - count;
      store_tokens(keys, map, b, position, new_keys, i, first_row, count);
      if (!Base::values_in_keys()) {
        store_tokens(values, map, b, position, new_values, i, first_row, count);
      }
      Base::held_length(b) += count;
    }
  }
};

}  // namespace detail
}  // namespace attn

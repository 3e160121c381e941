// attn/detail/caches/token_cache.hpp - level 10: what all caches share: their sequences, and how
// tokens are checked, stored and taken back.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Stores the last `count` tokens of one batch as the tokens position .. position + count - 1 of
/// sequence b.
template <class T, class From>
void store_tokens(const Tensor4<T>& storage, const KeyMap& map, Index b, Index position,
                  const Tensor4<From>& tokens, Index token_batch, Index count) {
  using Value = std::remove_const_t<From>;
  const TensorRef rows(storage);
  const Index first = tokens.length() - count;
  for (Index head = 0; head < storage.heads(); ++head) {
    for (Index i = 0; i < count;) {
      const KeyMap::Run run = map.find(rows, b, head, position + i);
      const Index length = (std::min)(run.length, count - i);
      for (Index row = 0; row < length; ++row, ++i) {
        T* const to = storage.data() + run.offset + row * storage.stride().length;
        for (Index d = 0; d < storage.dim(); ++d) {
          to[d * storage.stride().dim] =
              convert_element<T, Value>(tokens(token_batch, head, first + i, d));
        }
      }
    }
  }
}

/// Checks k [sequences, Hk, n, Dk] and v [sequences, Hv, n, Dv] against the storage of a cache.
inline void check_tokens(CallShapes& call, const TensorRef& keys, const TensorRef& values,
                         Index sequences, const TensorRef& k, const TensorRef& v,
                         const PerBatch& counts) {
  call.add_output("cached keys", keys);
  call.add_output("cached values", values);
  call.add_input("k", k);
  call.add_input("v", v);
  if (k.shape.batch != sequences || v.shape.batch != sequences) {
    call.raise_shape("k and v must have one batch a sequence, " + std::to_string(sequences));
  }
  call.expect(k.shape.length == v.shape.length, "k and v must have the same length");
  call.expect(k.shape.heads == keys.shape.heads && v.shape.heads == values.shape.heads,
              "k and v must have the heads of the cache");
  call.expect(k.shape.dim == keys.shape.dim && v.shape.dim == values.shape.dim,
              "k and v must have the dims of the cache");
  if (!counts.is_scalar() && counts.size() != sequences) {
    call.raise_shape("counts must hold one number, or one each sequence, " +
                     std::to_string(sequences) + ", got " + std::to_string(counts.size()));
  }
  for (Index i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > k.shape.length) {
      call.raise_shape("counts must lie within 0 and the length of k, got " +
                       std::to_string(counts[i]));
    }
  }
}

/// Checks the lengths to which sequences are cut.
inline void check_truncation(const char* function, Span<const Index> held, const PerBatch& length) {
  if (!length.is_scalar() && length.size() != held.size()) {
    raise_shape_error(std::string(function) + ": needs one length, or one each sequence, " +
                      std::to_string(held.size()) + ", got " + std::to_string(length.size()));
  }
  for (Index b = 0; b < held.size(); ++b) {
    if (length[b] < 0 || length[b] > held[b]) {
      raise_shape_error(std::string(function) + ": sequence " + std::to_string(b) + " holds " +
                        std::to_string(held[b]) + " tokens and cannot be cut to " +
                        std::to_string(length[b]));
    }
  }
}

inline void check_sequence(const char* function, Index b, Index batch) {
  if (b < 0 || b >= batch) {
    raise_shape_error(std::string(function) + ": there is no sequence " + std::to_string(b) +
                      " among the " + std::to_string(batch) + " of the cache");
  }
}

/// Refuses `count` tokens more of sequence b than its capacity leaves room for.
inline void require_room(const CallShapes& call, Index b, Index held, Index count, Index capacity) {
  if (count <= capacity - held) return;
  call.raise_shape("append past capacity: sequence " + std::to_string(b) + " holds " +
                   std::to_string(held) + " of " + std::to_string(capacity) + " tokens, " +
                   std::to_string(count) + " more do not fit");
}

}  // namespace ATTN_BUILD

/// How error texts spell the functions of a cache.
struct CacheFunctions {
  const char *append, *append_to, *truncate, *reset;
};

/// What the caches have in common. `Cache` derives from this and tells where tokens lie:
///   key_storage(), value_storage()   the memory
///   key_map()                        the place of each token in it
/// and, where it has more to do than nothing:
///   make_room(call, first, sequences, counts)   before tokens are stored; raises if they don't fit
///   check_cut(lengths)                          before any is cut; raises if one may not be
///   cut(b, length)                              before sequence b is cut
template <class Cache, class T>
class TokenCache {
  static_assert(is_element_v<T>,
                "attn: the element type of a cache must be double, float, Eigen::half or "
                "Eigen::bfloat16");

 public:
  using Element = T;

  /// The number of sequences.
  ATTN_ALWAYS_INLINE Index batch() const { return static_cast<Index>(lengths_.size()); }
  ATTN_ALWAYS_INLINE Index num_kv_heads() const { return cache().key_storage().heads(); }
  ATTN_ALWAYS_INLINE Index head_dim() const { return cache().key_storage().dim(); }
  ATTN_ALWAYS_INLINE Index value_dim() const { return cache().value_storage().dim(); }

  /// The number of tokens of sequence b, which is the position that its next token takes.
  ATTN_ALWAYS_INLINE Index length(Index b) const { return lengths_[static_cast<std::size_t>(b)]; }
  /// The same of all sequences.
  ATTN_ALWAYS_INLINE Span<const Index> lengths() const { return lengths_; }
  /// Sk of a call.
  ATTN_ALWAYS_INLINE Index longest_length() const {
    return lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  }

  /// Appends n tokens to every sequence: k [B, Hk, n, Dk], v [B, Hv, n, Dv], of any element types
  /// and strides. Throws ShapeError, and nothing changes, if they do not fit.
  template <class K, class V>
  ATTN_ALWAYS_INLINE void append(const K& k, const V& v) {
    append(k, v, PerBatch(k.shape().length));
  }
  /// Sequence b appends the last counts[b] of the n tokens; those before are padding. (The last
  /// ones, since the last query of a call stands at the last key.)
  template <class K, class V>
  ATTN_ALWAYS_INLINE void append(const K& k, const V& v, PerBatch counts) {
    append_range(Cache::kFunctions.append, 0, batch(), k, v, counts);
  }
  /// Appends k [1, Hk, n, Dk] and v [1, Hv, n, Dv] to sequence b alone.
  template <class K, class V>
  ATTN_ALWAYS_INLINE void append_to(Index b, const K& k, const V& v) {
    check_sequence(Cache::kFunctions.append_to, b, batch());
    append_range(Cache::kFunctions.append_to, b, 1, k, v, PerBatch(k.shape().length));
  }

  /// Takes back the tokens behind the first length[b] of each sequence, as after speculative
  /// decoding. Throws ShapeError, and nothing changes, if a sequence holds fewer.
  ATTN_ALWAYS_INLINE void truncate(PerBatch length) {
    check_truncation(Cache::kFunctions.truncate, lengths(), length);
    cache().check_cut(length);
    for (Index b = 0; b < batch(); ++b) set_length(b, length[b]);
  }
  /// Forgets all tokens.
  ATTN_ALWAYS_INLINE void reset() {
    for (Index b = 0; b < batch(); ++b) set_length(b, 0);
  }
  /// Forgets the tokens of sequence b, whose place another one may take.
  ATTN_ALWAYS_INLINE void reset(Index b) {
    check_sequence(Cache::kFunctions.reset, b, batch());
    set_length(b, 0);
  }

  /// Whether the cache lets go of tokens that it was given.
  static constexpr bool kForgets = false;
  /// The first token of sequence b that is held once `count` more have been appended to each.
  ATTN_ALWAYS_INLINE Index first_held_after(Index, Index) const { return 0; }
  /// The mask of a call: what the cache adds to it.
  template <class M>
  ATTN_ALWAYS_INLINE const M& mask_with(const M& mask) const {
    return mask;
  }

 protected:
  ATTN_ALWAYS_INLINE TokenCache() = default;
  ATTN_ALWAYS_INLINE explicit TokenCache(Index batch) : lengths_(static_cast<std::size_t>(batch)) {}

  ATTN_ALWAYS_INLINE void swap(TokenCache& other) noexcept { lengths_.swap(other.lengths_); }

  ATTN_ALWAYS_INLINE void make_room(const CallShapes&, Index, Index, const PerBatch&) {}
  ATTN_ALWAYS_INLINE void check_cut(const PerBatch&) const {}
  ATTN_ALWAYS_INLINE void cut(Index, Index) {}

  ATTN_ALWAYS_INLINE void set_length(Index b, Index length) {
    cache().cut(b, length);
    lengths_[static_cast<std::size_t>(b)] = length;
  }
  /// Numbers of the sequences, for calls whose batches share a single sequence too.
  ATTN_ALWAYS_INLINE static PerBatch per_batch(const std::vector<Index>& numbers) {
    return numbers.size() == 1 ? PerBatch(numbers[0]) : PerBatch(numbers);
  }
  ATTN_ALWAYS_INLINE KeyValueSource source_from(const PerBatch& first_keys, Index capacity) const {
    const Index longest = longest_length();
    KeyValueSource source;
    source.keys = TensorRef(cache().key_storage());
    source.values = TensorRef(cache().value_storage());
    source.map = cache().key_map();
    source.key_shape = {batch(), source.keys.shape.heads, longest, source.keys.shape.dim};
    source.value_shape = {batch(), source.values.shape.heads, longest, source.values.shape.dim};
    source.length = longest;
    source.begin = first_keys;
    source.end = per_batch(lengths_);
    source.capacity = capacity;
    source.matrix_products = matrix_products_of<T, T>();
    return source;
  }

 private:
  ATTN_ALWAYS_INLINE Cache& cache() { return static_cast<Cache&>(*this); }
  ATTN_ALWAYS_INLINE const Cache& cache() const { return static_cast<const Cache&>(*this); }

  template <class K, class V>
  ATTN_ALWAYS_INLINE void append_range(const char* function, Index first, Index sequences,
                                       const K& k, const V& v, const PerBatch& counts) {
    const auto new_keys = ArgumentOf<K>::view(k);
    const auto new_values = ArgumentOf<V>::view(v);
    CallShapes call(function);
    check_tokens(call, TensorRef(cache().key_storage()), TensorRef(cache().value_storage()),
                 sequences, TensorRef(new_keys), TensorRef(new_values), counts);
    cache().make_room(call, first, sequences, counts);
    const Tensor4<T> keys = cache().key_storage(), values = cache().value_storage();
    const KeyMap map = cache().key_map();
    for (Index i = 0; i < sequences; ++i) {
      const Index b = first + i, position = length(b), count = counts[i];
      store_tokens(keys, map, b, position, new_keys, i, count);
      store_tokens(values, map, b, position, new_values, i, count);
      lengths_[static_cast<std::size_t>(b)] += count;
    }
  }

  std::vector<Index> lengths_;
};

}  // namespace detail
}  // namespace attn

// attn/detail/caches/token_cache.hpp - level 10: what all caches share: their sequences, and how
// tokens are checked, stored and taken back.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>

#include "attn/config.hpp"
#include "attn/detail/caches/reorder.hpp"
#include "attn/detail/caches/sequence_lengths.hpp"
#include "attn/detail/caches/stored_rows.hpp"
#include "attn/detail/caches/token_checks.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/loop/run.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/key_value_source.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
/// How error texts spell the functions of a cache.
struct CacheFunctions {
  const char *append, *append_to, *truncate, *reset, *reorder, *save, *restore;
};

/// What the caches have in common. `Cache` derives from this and tells where tokens lie:
///   key_storage(), value_storage()   the memory
///   key_map()                        the place of each token in it
/// and, where it has more to do than nothing:
///   make_room(call, first, sequences, counts)   before tokens are stored; raises if they don't fit
///   check_cut(lengths)                          before any is cut; raises if one may not be
///   cut(b, length)                              before sequence b is cut
///   for_each_held(b, f)                         calls f(range) for the tokens that are held
///   needed(length)                              tokens that must be held of so many
///   check_room(call, lengths)                   before all tokens are replaced by so many
///   resume(b, length, count)                    then, before the last `count` of them are stored
///   copy_sequence(from, to), rotate_sequences(parents, first)   see move_in_place
template <class Cache, class T>
class TokenCache : public SequenceLengths {
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

  /// Sequence b takes the tokens of sequence parents[b], all at once: what a beam search does to
  /// the beams that go on. Parents may repeat and be in any order; one that nobody takes is
  /// forgotten, and a sequence that is its own parent costs nothing. Throws ShapeError, and nothing
  /// changes, unless there is one parent a sequence, each of them a sequence of the cache. Cost: a
  /// copy of the tokens that are held by the parents of sequences that change, in place (pages are
  /// shared instead); allocates nothing.
  ATTN_ALWAYS_INLINE void reorder(Span<const Index> parents) {
    check_parents(Cache::kFunctions.reorder, parents, batch());
    move_in_place(
        parents, scratch(), [this](Index from, Index to) { cache().copy_sequence(from, to); },
        [&](Index first) { cache().rotate_sequences(parents, first); });
  }

  /// How many tokens of sequence b are held: all that it has, but for those that a rolling cache
  /// has let go.
  ATTN_ALWAYS_INLINE Index num_held(Index b) const {
    Index count = 0;
    cache().for_each_held(b, [&](KeyRange tokens) { count += tokens.size(); });
    return count;
  }
  /// The most of any sequence.
  ATTN_ALWAYS_INLINE Index longest_held() const {
    Index longest = 0;
    for (Index b = 0; b < batch(); ++b) longest = (std::max)(longest, num_held(b));
    return longest;
  }
  /// Writes the tokens that are held, in their order, to k [B, Hk, n, Dk] and v [B, Hv, n, Dv], n
  /// being longest_held() or more: those of sequence b are the last num_held(b), and what is before
  /// stays as it is. Of any element types and strides; those of the cache's type get its bits.
  /// Throws ShapeError, before anything is written, if they do not fit.
  template <class K, class V>
  ATTN_ALWAYS_INLINE void save(K&& k, V&& v) const {
    const auto out_keys = output_view<K>(k);
    const auto out_values = output_view<V>(v);
    const Tensor4<const T> keys = cache().key_storage(), values = cache().value_storage();
    CallShapes call(Cache::kFunctions.save);
    check_saved(call, TensorRef(keys), TensorRef(values), batch(), TensorRef(out_keys),
                TensorRef(out_values), longest_held());
    const KeyMap map = cache().key_map();
    for (Index b = 0; b < batch(); ++b) {
      Index row = out_keys.length() - num_held(b);
      cache().for_each_held(b, [&](KeyRange tokens) {
        load_tokens(keys, map, b, tokens.begin, out_keys, row, tokens.size());
        load_tokens(values, map, b, tokens.begin, out_values, row, tokens.size());
        row += tokens.size();
      });
    }
  }
  /// Takes back what save() has written: sequence b has lengths[b] tokens from now on, and goes on
  /// with the bits of the one that was saved. k [B, Hk, n, Dk] and v [B, Hv, n, Dv] end with the
  /// tokens that it held: counts[b] of them, its num_held(b) when it was saved; without counts,
  /// min(n, lengths[b]), which is as many unless sequences held different numbers. Those are all
  /// tokens, or in a rolling cache those of the window at least. Throws ShapeError, and nothing
  /// changes, if they do not fit.
  template <class K, class V>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k, const V& v) {
    restore_all(lengths, nullptr, k, v);
  }
  template <class K, class V>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k, const V& v, PerBatch counts) {
    restore_all(lengths, &counts, k, v);
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
  ATTN_ALWAYS_INLINE explicit TokenCache(Index batch) : SequenceLengths(batch) {}

  ATTN_ALWAYS_INLINE void make_room(const CallShapes&, Index, Index, const PerBatch&) {}
  ATTN_ALWAYS_INLINE void check_cut(const PerBatch&) const {}
  ATTN_ALWAYS_INLINE void cut(Index, Index) {}
  /// The tokens of sequence b that are held, as ranges.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_held(Index b, const F& f) const {
    f(KeyRange{0, length(b)});
  }
  ATTN_ALWAYS_INLINE Index needed(Index length) const { return length; }
  ATTN_ALWAYS_INLINE void check_room(const CallShapes&, Span<const Index>) const {}
  ATTN_ALWAYS_INLINE void resume(Index, Index, Index) {}
  ATTN_ALWAYS_INLINE void copy_sequence(Index from, Index to) {
    const SequenceRows<T> keys(cache().key_storage()), values(cache().value_storage());
    for_each_held_rows(from, [&](KeyRange rows) {
      keys.copy(from, to, rows);
      values.copy(from, to, rows);
    });
    length_of(to) = length(from);
  }
  ATTN_ALWAYS_INLINE void rotate_sequences(Span<const Index> parents, Index first) {
    const auto held_rows = [this](Index b, const auto& f) { for_each_held_rows(b, f); };
    rotate_rows(cache().key_storage(), parents, first, held_rows);
    rotate_rows(cache().value_storage(), parents, first, held_rows);
    rotate_lengths(parents, first);
  }
  ATTN_ALWAYS_INLINE void set_length(Index b, Index length) {
    cache().cut(b, length);
    length_of(b) = length;
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
    source.end = per_batch_lengths();
    source.capacity = capacity;
    source.matrix_products = matrix_products_of<T, T>();
    return source;
  }

 private:
  ATTN_ALWAYS_INLINE Cache& cache() { return static_cast<Cache&>(*this); }
  ATTN_ALWAYS_INLINE const Cache& cache() const { return static_cast<const Cache&>(*this); }

  /// The rows of the storage, which has no pages, that hold tokens of sequence b, as ranges.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_held_rows(Index b, const F& f) const {
    const KeyMap map = cache().key_map();
    const TensorRef storage(cache().key_storage());
    cache().for_each_held(
        b, [&](KeyRange tokens) { for_each_row_range(map, storage.shape.length, tokens, f); });
  }

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
      const Index first_row = new_keys.length() - count;
      store_tokens(keys, map, b, position, new_keys, i, first_row, count);
      store_tokens(values, map, b, position, new_values, i, first_row, count);
      length_of(b) += count;
    }
  }

  template <class K, class V>
  ATTN_ALWAYS_INLINE void restore_all(const PerBatch& lengths, const PerBatch* counts, const K& k,
                                      const V& v) {
    const auto new_keys = ArgumentOf<K>::view(k);
    const auto new_values = ArgumentOf<V>::view(v);
    const Tensor4<T> keys = cache().key_storage(), values = cache().value_storage();
    CallShapes call(Cache::kFunctions.restore);
    check_tokens(call, TensorRef(keys), TensorRef(values), batch(), TensorRef(new_keys),
                 TensorRef(new_values), counts != nullptr ? *counts : PerBatch(0));
    check_lengths(call, lengths, batch());
    const Index rows = new_keys.length();
    const auto count_of = [&](Index b) {
      return counts != nullptr ? (*counts)[b] : (std::min)(rows, lengths[b]);
    };
    for (Index b = 0; b < batch(); ++b) {
      check_restored(call, b, lengths[b], count_of(b), cache().needed(lengths[b]),
                     cache().longest_sequence());
      scratch()[b] = lengths[b];  // which may be our own
    }
    cache().check_room(call, Span<const Index>(scratch(), batch()));
    reset();
    const KeyMap map = cache().key_map();
    for (Index b = 0; b < batch(); ++b) {
      const Index length = scratch()[b];
      const Index count = counts != nullptr ? (*counts)[b] : (std::min)(rows, length);
      cache().resume(b, length, count);
      length_of(b) = length;
      cache().for_each_held(b, [&](KeyRange tokens) {
        // Tokens before those that were let go are the first of the rows.
        const Index row = tokens.end == length ? rows - tokens.size() : rows - count;
        store_tokens(keys, map, b, tokens.begin, new_keys, b, row, tokens.size());
        store_tokens(values, map, b, tokens.begin, new_values, b, row, tokens.size());
      });
    }
  }
};

}  // namespace detail
}  // namespace attn

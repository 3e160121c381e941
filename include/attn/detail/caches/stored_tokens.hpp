// attn/detail/caches/stored_tokens.hpp - level 10: what is done with the tokens that a cache holds:
// sequences take each other's, some are dropped, all are saved and restored.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/caches/reorder.hpp"
#include "attn/detail/caches/sequence_lengths.hpp"
#include "attn/detail/caches/stored_rows.hpp"
#include "attn/detail/caches/token_checks.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// How error texts spell the functions of a cache.
struct CacheFunctions {
  const char *append, *append_to, *truncate, *reset, *reorder, *save, *restore, *keep_tokens;
};

/// The tokens of a cache. `Cache` derives from this and tells where they lie:
///   key_storage(), value_storage()   the memory
///   key_map()                        the place of each token in it
///   longest_sequence()               the most tokens of a sequence
/// and, where it has more to do than nothing:
///   cut(b, length)                              before sequence b is cut
///   for_each_held(b, f)                         calls f(range) for the tokens that are held
///   needed(length)                              tokens that must be held of so many
///   check_room(call, lengths)                   before all tokens are replaced by so many
///   resume(b, length, count)                    then, before the last `count` of them are stored
///   first_movable(b)                            tokens before it cannot be moved
///   check_moves(b, first, length), prepare_moves   before tokens are moved to first .. length - 1
///   copy_sequence(from, to), rotate_sequences(parents, first)   see move_in_place
template <class Cache, class T>
class StoredTokens : public SequenceLengths {
 public:
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

  /// Only these tokens of sequence b stay, in ascending order; the others are dropped, and those
  /// behind them move up: token tokens[i] becomes token i, and the sequence has tokens.size() of
  /// them. What is dropped may lie anywhere: branches of a tree of drafts, the middle of a text
  /// that has become too long, keys of little weight. Keys keep what a rotary embedding has done to
  /// them, so that their distances to one another stay; those to later queries shrink. A rolling
  /// cache moves what it holds for sure: tokens that it may have let go, and those first ones that
  /// it keeps for ever once others are gone, stay and count whether they are named or not; and as
  /// after truncate(), the window must be held. Throws ShapeError, and nothing changes, unless 0 <=
  /// tokens[0] < tokens[1] .. < length(b), and where a page that another sequence uses must be
  /// copied and none is free. Cost: a copy of the tokens that move; allocates nothing.
  ATTN_ALWAYS_INLINE void keep_tokens(Index b, Span<const Index> tokens) {
    keep(b, tokens, [](const Tensor4<T>&, Index) {});
  }
  /// The same, and the keys that move are turned back by as many positions as they move, as if they
  /// had been appended where they stand then ("context shift"). `rotary`: the RotaryEmbedding that
  /// has turned key t to position t; of frequencies, not of given tables (a ShapeError too).
  /// Error: a rounding to T, and that of RotaryEmbedding::shift, each time that a key moves.
  template <class Rotary>
  ATTN_ALWAYS_INLINE void keep_tokens(Index b, Span<const Index> tokens, const Rotary& rotary) {
    check_turn(Cache::kFunctions.keep_tokens, rotary, cache().key_storage().dim(),
               values_in_keys());
    keep(b, tokens, [&](const Tensor4<T>& keys, Index steps) { rotary.shift(keys, steps); });
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
    check_form(Cache::kFunctions.save, values_in_keys(), false);
    save_all(output_view<K>(k), output_view<V>(v));
  }
  /// The same of a cache whose values lie in its keys.
  template <class K>
  ATTN_ALWAYS_INLINE void save(K&& k) const {
    check_form(Cache::kFunctions.save, values_in_keys(), true);
    const auto keys = output_view<K>(k);
    save_all(keys, first_columns(keys, cache().value_storage().dim()));
  }
  /// Takes back what save() has written: sequence b has lengths[b] tokens from now on, and goes on
  /// with the bits of the one that was saved. k [B, Hk, n, Dk] and v [B, Hv, n, Dv] end with the
  /// tokens that it held: counts[b] of them, its num_held(b) when it was saved; without counts,
  /// min(n, lengths[b]), which is as many unless sequences held different numbers. Those are all
  /// tokens, or in a rolling cache those of the window at least. Throws ShapeError, and nothing
  /// changes, if they do not fit.
  template <class K, class V, std::enable_if_t<is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k, const V& v) {
    check_form(Cache::kFunctions.restore, values_in_keys(), false);
    restore_all(lengths, nullptr, ArgumentOf<K>::view(k), ArgumentOf<V>::view(v));
  }
  template <class K, class V, std::enable_if_t<is_tensor_v<V>, int> = 0>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k, const V& v, PerBatch counts) {
    check_form(Cache::kFunctions.restore, values_in_keys(), false);
    restore_all(lengths, &counts, ArgumentOf<K>::view(k), ArgumentOf<V>::view(v));
  }
  /// The same of a cache whose values lie in its keys.
  template <class K>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k) {
    check_form(Cache::kFunctions.restore, values_in_keys(), true);
    const auto keys = ArgumentOf<K>::view(k);
    restore_all(lengths, nullptr, keys, first_columns(keys, cache().value_storage().dim()));
  }
  template <class K>
  ATTN_ALWAYS_INLINE void restore(PerBatch lengths, const K& k, PerBatch counts) {
    check_form(Cache::kFunctions.restore, values_in_keys(), true);
    const auto keys = ArgumentOf<K>::view(k);
    restore_all(lengths, &counts, keys, first_columns(keys, cache().value_storage().dim()));
  }

  /// Whether values are the first elements of their keys, stored once.
  ATTN_ALWAYS_INLINE bool values_in_keys() const { return values_in_keys_; }

 protected:
  ATTN_ALWAYS_INLINE StoredTokens() = default;
  ATTN_ALWAYS_INLINE StoredTokens(Index batch, const std::optional<Index>& value_columns)
      : SequenceLengths(batch),
        values_in_keys_(value_columns.has_value()),
        value_columns_(value_columns.value_or(0)) {}

  ATTN_ALWAYS_INLINE void swap(StoredTokens& other) noexcept {
    SequenceLengths::swap(other);
    std::swap(values_in_keys_, other.values_in_keys_);
    std::swap(value_columns_, other.value_columns_);
  }

  /// `values`, or what of the keys is.
  template <class U>
  ATTN_ALWAYS_INLINE Tensor4<U> values_of(const Tensor4<U>& keys, const Tensor4<U>& values) const {
    return values_in_keys_ ? first_columns(keys, value_columns_) : values;
  }
  /// Calls f(storage) for that of the keys, and of values that do not lie in it.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_storage(const F& f) {
    f(cache().key_storage());
    if (!values_in_keys()) f(cache().value_storage());
  }

  ATTN_ALWAYS_INLINE void cut(Index, Index) {}
  /// The tokens of sequence b that are held, as ranges.
  template <class F>
  ATTN_ALWAYS_INLINE void for_each_held(Index b, const F& f) const {
    f(KeyRange{0, length(b)});
  }
  ATTN_ALWAYS_INLINE Index first_movable(Index) const { return 0; }
  ATTN_ALWAYS_INLINE void check_moves(Index, Index, Index) const {}
  ATTN_ALWAYS_INLINE void prepare_moves(Index, Index, Index) {}
  ATTN_ALWAYS_INLINE Index needed(Index length) const { return length; }
  ATTN_ALWAYS_INLINE void check_room(const CallShapes&, Span<const Index>) const {}
  ATTN_ALWAYS_INLINE void resume(Index, Index, Index) {}
  ATTN_ALWAYS_INLINE void copy_sequence(Index from, Index to) {
    for_each_storage([&](const Tensor4<T>& storage) {
      const SequenceRows<T> all(storage);
      for_each_held_rows(from, [&](KeyRange rows) { all.copy(from, to, rows); });
    });
    held_length(to) = length(from);
  }
  ATTN_ALWAYS_INLINE void rotate_sequences(Span<const Index> parents, Index first) {
    const auto held_rows = [this](Index b, const auto& f) { this->for_each_held_rows(b, f); };
    for_each_storage(
        [&](const Tensor4<T>& storage) { rotate_rows(storage, parents, first, held_rows); });
    rotate_lengths(parents, first);
  }
  ATTN_ALWAYS_INLINE void set_length(Index b, Index length) {
    cache().cut(b, length);
    held_length(b) = length;
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

  template <class Turn>
  ATTN_ALWAYS_INLINE void keep(Index b, Span<const Index> tokens, const Turn& turn) {
    const char* const function = Cache::kFunctions.keep_tokens;
    check_sequence(function, b, batch());
    check_kept(function, tokens, length(b));
    const Index fixed = cache().first_movable(b);
    const Index kept = std::count_if(tokens.begin(), tokens.end(),
                                     [fixed](Index token) { return token >= fixed; });
    const Index new_length = fixed + kept;
    Index first_moved = new_length;
    for_each_moved_run(tokens, fixed,
                       [&](Index, Index to, Index) { first_moved = (std::min)(first_moved, to); });
    if (new_length != length(b)) cache().check_moves(b, first_moved, new_length);
    cache().prepare_moves(b, first_moved, new_length);
    const Tensor4<T> keys = cache().key_storage();
    const KeyMap map = cache().key_map();
    for_each_moved_run(tokens, fixed, [&](Index from, Index to, Index count) {
      for_each_storage(
          [&](const Tensor4<T>& storage) { move_tokens(storage, map, b, from, to, count); });
      for_each_token_run(TensorRef(keys), map, b, 0, to, count, [&](Index place, Index, Index n) {
        turn(Tensor4<T>(keys.data() + place, Shape4{1, keys.heads(), n, keys.dim()}, keys.stride()),
             to - from);
      });
    });
    set_length(b, new_length);
  }

  template <class K, class V>
  ATTN_ALWAYS_INLINE void save_all(const Tensor4<K>& k, const Tensor4<V>& v) const {
    const Tensor4<const T> keys = cache().key_storage(), values = cache().value_storage();
    CallShapes call(Cache::kFunctions.save);
    check_saved(call, TensorRef(keys), TensorRef(values), batch(), TensorRef(k), TensorRef(v),
                longest_held(), values_in_keys());
    const KeyMap map = cache().key_map();
    for (Index b = 0; b < batch(); ++b) {
      Index row = k.length() - num_held(b);
      cache().for_each_held(b, [&](KeyRange tokens) {
        load_tokens(keys, map, b, tokens.begin, k, row, tokens.size());
        if (!values_in_keys()) load_tokens(values, map, b, tokens.begin, v, row, tokens.size());
        row += tokens.size();
      });
    }
  }

  template <class K, class V>
  ATTN_ALWAYS_INLINE void restore_all(const PerBatch& lengths, const PerBatch* counts,
                                      const Tensor4<K>& new_keys, const Tensor4<V>& new_values) {
    const Tensor4<T> keys = cache().key_storage(), values = cache().value_storage();
    CallShapes call(Cache::kFunctions.restore);
    check_tokens(call, TensorRef(keys), TensorRef(values), batch(), TensorRef(new_keys),
                 TensorRef(new_values), counts != nullptr ? *counts : PerBatch(0),
                 values_in_keys());
    check_lengths(call, lengths, batch());
    const Index rows = new_keys.length();
    const auto count_of = [&](Index b, Index length) {
      return counts != nullptr ? (*counts)[b] : (std::min)(rows, length);
    };
    for (Index b = 0; b < batch(); ++b) {
      check_restored(call, b, lengths[b], count_of(b, lengths[b]), cache().needed(lengths[b]),
                     cache().longest_sequence());
      scratch()[b] = lengths[b];  // which may be our own
    }
    cache().check_room(call, Span<const Index>(scratch(), batch()));
    for (Index b = 0; b < batch(); ++b) set_length(b, 0);
    const KeyMap map = cache().key_map();
    for (Index b = 0; b < batch(); ++b) {
      const Index length = scratch()[b];
      const Index count = count_of(b, length);
      cache().resume(b, length, count);
      held_length(b) = length;
      cache().for_each_held(b, [&](KeyRange tokens) {
        // Tokens before those that were let go are the first of the rows.
        const Index row = tokens.end == length ? rows - tokens.size() : rows - count;
        store_tokens(keys, map, b, tokens.begin, new_keys, b, row, tokens.size());
        if (values_in_keys()) return;
        store_tokens(values, map, b, tokens.begin, new_values, b, row, tokens.size());
      });
    }
  }

  bool values_in_keys_ = false;
  Index value_columns_ = 0;  // of the keys, which are values then
};

}  // namespace detail
}  // namespace attn

// attn/detail/caches/reorder.hpp - level 10: sequences that take each other's place, without room
// for another one.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>

#include "attn/config.hpp"
#include "attn/detail/caches/stored_rows.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Gives every sequence b what its parent has, all at once: copy(from, to) where nobody will need
/// any more what `to` has, and rotate(first) for the ring first, parents[first], ... of sequences
/// each of which takes what the next one has. `readers`: room for a number a sequence.
template <class Copy, class Rotate>
void move_in_place(Span<const Index> parents, Index* readers, const Copy& copy,
                   const Rotate& rotate) {
  constexpr Index kDone = -1;
  const Index count = parents.size();
  std::fill_n(readers, count, Index{0});
  for (Index b = 0; b < count; ++b) {
    if (parents[b] != b) ++readers[parents[b]];
  }
  // Whoever is read by nobody takes its own; its parent may be the next.
  for (Index b = 0; b < count; ++b) {
    for (Index to = b; readers[to] == 0 && parents[to] != to;) {
      const Index from = parents[to];
      copy(from, to);
      readers[to] = kDone;
      --readers[from];
      to = from;
    }
  }
  // What is left is read by one other each.
  for (Index b = 0; b < count; ++b) {
    if (readers[b] <= 0) continue;
    rotate(b);
    for (Index member = b; readers[member] != kDone; member = parents[member]) {
      readers[member] = kDone;
    }
  }
}

/// Rotates a ring of sequences of which each has `count` numbers, `stride` apart.
inline void rotate_numbers(Index* numbers, Index stride, Index count, Span<const Index> parents,
                           Index first) {
  for (Index i = 0; i < count; ++i) {
    const Index saved = numbers[first * stride + i];
    Index b = first;
    for (; parents[b] != first; b = parents[b]) {
      numbers[b * stride + i] = numbers[parents[b] * stride + i];
    }
    numbers[b * stride + i] = saved;
  }
}

/// Rotates a ring of sequences, of which for_each_rows(b, f) calls f(range) for the rows that b
/// has. One after the other through a small buffer: each sequence's rows are read once, and written
/// once.
template <class T, class ForEachRows>
void rotate_rows(const Tensor4<T>& storage, Span<const Index> parents, Index first,
                 const ForEachRows& for_each_rows) {
  // 4 KiB and 16 KiB did alike.
  constexpr std::size_t kBytes = 8192;
  constexpr Index kElements = kBytes / sizeof(T);
  T buffer[kBytes / sizeof(T)];
  const SequenceRows<T> all(storage);
  if (all.dim == 0) return;
  const Index dims = (std::min)(all.dim, kElements), rows = kElements / dims;
  for (Index head = 0; head < all.heads; ++head) {
    for (Index row = 0; row < storage.length(); row += rows) {
      for (Index d = 0; d < all.dim; d += dims) {
        const KeyRange chunk{row, (std::min)(storage.length(), row + rows)};
        const Index width = (std::min)(dims, all.dim - d);
        const auto for_each_part = [&](Index b, const auto& f) {
          for_each_rows(b, [&](KeyRange held) {
            const KeyRange part = held & chunk;
            if (!part.empty()) f(part, buffer + (part.begin - row) * width);
          });
        };
        for_each_part(first, [&](KeyRange part, T* place) {
          copy_rows(all.at(first, head, part.begin, d), all.strides, place, {width, 1}, part.size(),
                    width);
        });
        Index b = first;
        for (; parents[b] != first; b = parents[b]) {
          for_each_part(parents[b], [&](KeyRange part, T*) {
            copy_rows(all.at(parents[b], head, part.begin, d), all.strides,
                      all.at(b, head, part.begin, d), all.strides, part.size(), width);
          });
        }
        for_each_part(first, [&](KeyRange part, T* place) {
          copy_rows(place, {width, 1}, all.at(b, head, part.begin, d), all.strides, part.size(),
                    width);
        });
      }
    }
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

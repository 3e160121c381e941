// attn/detail/caches/stored_rows.hpp - level 10: tokens into the rows of a cache, out of them, and
// from one to another.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/key_map.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The first `dim` columns of all rows.
template <class T>
Tensor4<T> first_columns(const Tensor4<T>& rows, Index dim) {
  const Shape4& s = rows.shape();
  return {rows.data(), Shape4{s.batch, s.heads, s.length, dim}, rows.stride()};
}

/// Calls f(offset, i, n) for runs of the tokens position .. position + count - 1 of a head: the run
/// begins with token position + i, at that element of the storage, and has n rows.
template <class F>
void for_each_token_run(const TensorRef& storage, const KeyMap& map, Index b, Index head,
                        Index position, Index count, const F& f) {
  for (Index i = 0; i < count;) {
    const KeyMap::Run run = map.find(storage, b, head, position + i);
    const Index length = (std::min)(run.length, count - i);
    f(run.offset, i, length);
    i += length;
  }
}

/// Calls f(range) for the rows of a storage without pages that hold `tokens`.
template <class F>
void for_each_row_range(const KeyMap& map, Index rows, KeyRange tokens, const F& f) {
  if (map.order == KeyMap::Order::as_stored) {
    f(tokens);
    return;
  }
  for (Index t = tokens.begin; t < tokens.end;) {
    const Index row = map.ring_row(rows, t), end = t < map.first_rows ? map.first_rows : rows;
    const Index count = (std::min)(end - row, tokens.end - t);
    f(KeyRange{row, row + count});
    t += count;
  }
}

/// Stores the tokens first .. first + count - 1 of one batch as the tokens position .. position +
/// count - 1 of sequence b.
template <class T, class From>
void store_tokens(const Tensor4<T>& storage, const KeyMap& map, Index b, Index position,
                  const Tensor4<From>& tokens, Index token_batch, Index first, Index count) {
  using Value = std::remove_const_t<From>;
  for (Index head = 0; head < storage.heads(); ++head) {
    for_each_token_run(
        TensorRef(storage), map, b, head, position, count, [&](Index offset, Index i, Index n) {
          for (Index row = 0; row < n; ++row) {
            T* const to = storage.data() + offset + row * storage.stride().length;
            for (Index d = 0; d < storage.dim(); ++d) {
              to[d * storage.stride().dim] =
                  convert_element<T, Value>(tokens(token_batch, head, first + i + row, d));
            }
          }
        });
  }
}

/// Writes the tokens position .. position + count - 1 of sequence b to the rows first .. of one
/// batch.
template <class T, class To>
void load_tokens(const Tensor4<const T>& storage, const KeyMap& map, Index b, Index position,
                 const Tensor4<To>& tokens, Index first, Index count) {
  for (Index head = 0; head < storage.heads(); ++head) {
    for_each_token_run(
        TensorRef(storage), map, b, head, position, count, [&](Index offset, Index i, Index n) {
          for (Index row = 0; row < n; ++row) {
            const T* const from = storage.data() + offset + row * storage.stride().length;
            for (Index d = 0; d < storage.dim(); ++d) {
              tokens(b, head, first + i + row, d) =
                  convert_element<To, T>(from[d * storage.stride().dim]);
            }
          }
        });
  }
}

/// The distances between neighbouring rows and elements.
struct RowStrides {
  Index row, dim;
};

/// Copies `count` rows of `dim` elements, the first row first.
template <class T>
void copy_rows(const T* from, const RowStrides& from_strides, T* to, const RowStrides& to_strides,
               Index count, Index dim) {
  if (from_strides.dim == 1 && to_strides.dim == 1) {
    if (from_strides.row == dim && to_strides.row == dim) {
      std::copy(from, from + count * dim, to);
      return;
    }
    for (Index row = 0; row < count; ++row) {
      const T* const first = from + row * from_strides.row;
      std::copy(first, first + dim, to + row * to_strides.row);
    }
    return;
  }
  for (Index row = 0; row < count; ++row) {
    for (Index d = 0; d < dim; ++d) {
      to[row * to_strides.row + d * to_strides.dim] =
          from[row * from_strides.row + d * from_strides.dim];
    }
  }
}

/// Moves the tokens from .. from + count - 1 of sequence b to the places of to .. on, to < from.
template <class T>
void move_tokens(const Tensor4<T>& storage, const KeyMap& map, Index b, Index from, Index to,
                 Index count) {
  const TensorRef ref(storage);
  const RowStrides strides{storage.stride().length, storage.stride().dim};
  for (Index head = 0; head < storage.heads(); ++head) {
    for_each_token_run(ref, map, b, head, to, count, [&](Index place, Index done, Index rows) {
      for_each_token_run(ref, map, b, head, from + done, rows, [&](Index old, Index i, Index n) {
        copy_rows<T>(storage.data() + old, strides, storage.data() + place + i * strides.row,
                     strides, n, storage.dim());
      });
    });
  }
}

/// Of the ascending `tokens` that stay, those before `fixed` stay where they are, and the others
/// close up behind. Calls f(from, to, count) for runs of those that are moved, first ones first.
template <class F>
void for_each_moved_run(Span<const Index> tokens, Index fixed, const F& f) {
  Index skipped = 0;
  while (skipped < tokens.size() && tokens[skipped] < fixed) ++skipped;
  for (Index i = skipped; i < tokens.size();) {
    Index end = i + 1;
    while (end < tokens.size() && tokens[end] == tokens[end - 1] + 1) ++end;
    const Index place = fixed + i - skipped;
    if (tokens[i] != place) f(tokens[i], place, end - i);
    i = end;
  }
}

/// The rows of each sequence of a storage. Heads that lie side by side are one of their dims.
template <class T>
struct SequenceRows {
  T* data;
  Index heads, dim;
  Index batch_stride, head_stride;
  RowStrides strides;

  explicit SequenceRows(const Tensor4<T>& storage)
      : data(storage.data()),
        heads(storage.heads()),
        dim(storage.dim()),
        batch_stride(storage.stride().batch),
        head_stride(storage.stride().heads),
        strides{storage.stride().length, storage.stride().dim} {
    if (heads > 1 && head_stride == dim * strides.dim) {
      dim *= heads;
      heads = 1;
    }
  }
  T* at(Index b, Index head, Index row, Index d) const {
    return data + b * batch_stride + head * head_stride + row * strides.row + d * strides.dim;
  }
  /// The same rows of sequence `from`, to sequence `to`.
  void copy(Index from, Index to, KeyRange rows) const {
    for (Index head = 0; head < heads; ++head) {
      copy_rows<T>(at(from, head, rows.begin, 0), strides, at(to, head, rows.begin, 0), strides,
                   rows.size(), dim);
    }
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/projection/rotary_rows.hpp - level 13: tokens turned by the angles of their
// positions.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/projection/rotary_positions.hpp"
#include "attn/detail/projection/rotary_table.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/executor.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

inline namespace ATTN_BUILD {

/// The cosines and sines of some pairs at one position.
struct RotaryRow {
  static constexpr Index kPairs = 64;  ///< taken together: a head dim of 128, and 1 KiB of stack
  double cosines[kPairs], sines[kPairs];

  /// Whether this row turns nothing.
  bool is_identity(Index count) const {
    for (Index i = 0; i < count; ++i) {
      if (cosines[i] != 1 || sines[i] != 0) return false;
    }
    return true;
  }
};

/// The angles of position `first`.
inline void start_row(const RotaryTable& table, Index first, Index first_pair, Index count,
                      RotaryRow& row) {
  if (table.is_given()) return;
  for (Index i = 0; i < count; ++i) {
    const double angle =
        static_cast<double>(first) * table.frequencies[static_cast<std::size_t>(first_pair + i)];
    row.cosines[i] = std::cos(angle);
    row.sines[i] = std::sin(angle);
  }
}
/// The angles of `position`, `start` being those of first_of(position).
/// A turn multiplies by `factor`, given tables apart.
inline void finish_row(const RotaryTable& table, double factor, Index position,
                       const RotaryRow& start, Index first_pair, Index count, RotaryRow& row) {
  const Index r = table.is_given() ? position : position % RotaryTable::kSteps;
  const Index line = (r < 0 ? -r : r) * table.pairs + first_pair;
  const double* const c = table.cosines.data() + line;
  const double* const s = table.sines.data() + line;
  const double sign = r < 0 ? -1 : 1;
  for (Index i = 0; i < count; ++i) {
    if (table.is_given()) {
      row.cosines[i] = c[i];
      row.sines[i] = s[i];
    } else {
      const double sine = sign * s[i];
      row.cosines[i] = factor * (start.cosines[i] * c[i] - start.sines[i] * sine);
      row.sines[i] = factor * (start.sines[i] * c[i] + start.cosines[i] * sine);
    }
  }
}

/// Turns pairs of one token's head. The elements of pair i lie at i * step and i * step + distance.
template <class T>
void turn_pairs(T* x, Index step, Index distance, Index count, const RotaryRow& row) {
  for (Index i = 0; i < count; ++i) {
    T &first = x[i * step], &second = x[i * step + distance];
    const double a = convert_element<double>(first), b = convert_element<double>(second);
    first = round_to<T>(a * row.cosines[i] - b * row.sines[i]);
    second = round_to<T>(b * row.cosines[i] + a * row.sines[i]);
  }
}

/// Turns the tokens first .. first + count - 1 of batch b; position(i, section) is that of token i.
template <class T, class Position>
void turn_tokens(const RotaryTable& table, double factor, bool interleaved, const Tensor4<T>& x,
                 Index b, Index first, Index count, const Position& position) {
  const Index dim_stride = x.stride().dim;
  const Index step = interleaved ? 2 * dim_stride : dim_stride;
  const Index distance = interleaved ? dim_stride : table.pairs * dim_stride;
  Index pair = 0;
  for (Index section = 0; section < table.num_sections(); ++section) {
    const Index end = pair + table.sections[static_cast<std::size_t>(section)];
    for (Index pairs = 0; pair < end; pair += pairs) {
      pairs = (std::min)(RotaryRow::kPairs, end - pair);
      RotaryRow start, row;
      for (Index i = first; i < first + count; ++i) {
        const Index p = position(i, section);
        const bool is_new =
            i == first || table.first_of(p) != table.first_of(position(i - 1, section));
        if (is_new) start_row(table, table.first_of(p), pair, pairs, start);
        finish_row(table, factor, p, start, pair, pairs, row);
        if (row.is_identity(pairs)) continue;  // 0 * infinity would be NaN, and -0 might turn to 0
        for (Index h = 0; h < x.heads(); ++h) {
          turn_pairs(&x(b, h, i, 0) + pair * step, step, distance, pairs, row);
        }
      }
    }
  }
}

/// Checks x, of whose tokens section s stands at position(b, i, s), and turns it.
template <class T, class Position>
void turn_all(CallShapes& call, const RotaryTable& table, double factor, bool interleaved,
              const Tensor4<T>& x, Index head_dim, Executor* executor, const Position& position) {
  if (x.dim() != head_dim) {
    call.raise_shape("x must have the head_dim of the embedding, " + std::to_string(head_dim));
  }
  if (is_empty(x.shape())) return;
  if (table.is_given()) {
    for (Index b = 0; b < x.batch(); ++b) {
      for (Index i = 0; i < x.length(); ++i) {
        const Index p = position(b, i, 0);  // of the one section that tables have
        if (p < 0 || p >= table.given_positions()) {
          call.raise_shape("position " + std::to_string(p) + " does not lie within the " +
                           std::to_string(table.given_positions()) + " of the given tables");
        }
      }
    }
  }
  constexpr Index kTokens = RotaryTable::kSteps;
  const Index blocks = (x.length() + kTokens - 1) / kTokens;
  for_each_item(executor, worker_count(executor), x.batch() * blocks, [&](Index, Index item) {
    const Index b = item / blocks, first = item % blocks * kTokens;
    turn_tokens(table, factor, interleaved, x, b, first, (std::min)(kTokens, x.length() - first),
                [&](Index i, Index section) { return position(b, i, section); });
  });
}

template <class T>
void apply_rotary(const RotaryTable& table, bool interleaved, Index head_dim, const Tensor4<T>& x,
                  const PerBatch& first_position, Executor* executor) {
  CallShapes call("RotaryEmbedding::apply");
  call.add_output("x", TensorRef(x));
  if (!first_position.is_scalar() && first_position.size() != x.batch()) {
    call.raise_shape("first_position must hold one number, or one each batch of x, got " +
                     std::to_string(first_position.size()));
  }
  for (Index b = 0; b < first_position.size(); ++b) {
    if (first_position[b] > (std::numeric_limits<Index>::max)() - x.length()) {
      call.raise_shape("positions overflow: the first one is " + std::to_string(first_position[b]));
    }
  }
  turn_all(call, table, table.factor, interleaved, x, head_dim, executor,
           [&](Index b, Index i, Index) { return first_position[b] + i; });
}

template <class T>
void apply_rotary(const RotaryTable& table, bool interleaved, Index head_dim, const Tensor4<T>& x,
                  const TokenPositions& positions, Executor* executor) {
  CallShapes call("RotaryEmbedding::apply");
  call.add_output("x", TensorRef(x));
  add_positions(call, "positions", positions);
  check_positions(call, "positions", positions, "x", x.batch(), x.length(), table.num_sections());
  turn_all(call, table, table.factor, interleaved, x, head_dim, executor,
           [&](Index b, Index i, Index section) { return positions(b, i, section); });
}

/// Turns all tokens of x, wherever they stand, by `steps` positions more.
template <class T>
void shift_rotary(const RotaryTable& table, bool interleaved, Index head_dim, const Tensor4<T>& x,
                  Index steps, Executor* executor) {
  CallShapes call("RotaryEmbedding::shift");
  call.add_output("x", TensorRef(x));
  if (table.is_given()) {
    call.raise_shape("a rotary embedding of given tables does not tell the angle of a step");
  }
  turn_all(call, table, 1, interleaved, x, head_dim, executor,
           [steps](Index, Index, Index) { return steps; });
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

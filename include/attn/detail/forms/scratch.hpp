// attn/detail/forms/scratch.hpp - level 7: the memory that a call works in.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/error.hpp"
#include "attn/options.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

/// Hands out pieces of a block of memory, each aligned to a cache line. Over a null block it only
/// counts, so that one piece of code both sizes and carves.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  Arena() = default;
  explicit Arena(void* data) : data_(static_cast<char*>(data)) {}

  template <class T>
  T* take(Index count) {
    T* const piece = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    used_ +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  char* data_ = nullptr;
  std::size_t used_ = 0;
};

/// What one worker needs for a block of rows.
template <class A>
struct Scratch {
  A *queries, *out;                     ///< of all row tiles; see query_tile_size
  A *max, *sum, *correction;            ///< one a row
  A* spare;                             ///< sums that nobody reads, one a row; two numbers a split
  A* scores;                            ///< one tile
  A *key_copy, *value_copy;             ///< converted rows of one tile
  A *packed_keys, *packed_values;       ///< of one tile, in the matrix form
  A* value_pairs;                       ///< of one chunk of keys
  const void **key_rows, **value_rows;  ///< of one tile, in the row-lane form
  const void** ahead_rows;              ///< of the next tile, for prefetching
  const A** parts;                      ///< partial outputs to merge, one a split and a sink

  Scratch(const AttentionCall<A>& call, Arena& arena) {
    const TilePlan& plan = call.plan;
    const Index keys = tile_keys(call), rows = block_rows(call);
    queries = arena.take<A>(rows * query_stride(call));
    out = arena.take<A>(rows * (std::max)(out_stride(call), padded_value_dim(call)));
    max = arena.take<A>(rows);
    sum = arena.take<A>(rows);
    correction = arena.take<A>(rows);
    spare = arena.take<A>((std::max)(rows, 2 * (call.num_splits() + 1)));
    scores = arena.take<A>(keys * (plan.rows_are_lanes ? plan.row_tile : rows));
    const bool is_matrix = call.matrix_unit != nullptr;
    key_copy = arena.take<A>(call.copies_keys() && !is_matrix ? keys * call.key_dim : 0);
    value_copy = arena.take<A>(keys * call.value_dim);
    packed_keys = arena.take<A>(is_matrix ? keys * key_stride(call) : 0);
    packed_values = arena.take<A>(is_matrix ? out_stride(call) * value_stride(call) : 0);
    value_pairs = arena.take<A>(is_matrix ? MatrixUnit::kPairs * call.value_dim : 0);
    const Index listed = call.lists_rows() ? keys : 0;
    key_rows = arena.take<const void*>(listed);
    value_rows = arena.take<const void*>(listed);
    ahead_rows = arena.take<const void*>(listed);
    parts = arena.take<const A*>(call.is_split() ? call.num_splits() + 1 : 0);
  }

  /// Elements a row of queries / outputs takes. In the row-lane form tiles lie behind each other as
  /// [dim][row_tile]; else rows do, padded to whole vectors.
  static Index query_stride(const AttentionCall<A>& call) {
    if (call.matrix_unit != nullptr) return 2 * key_stride(call);
    return call.plan.rows_are_lanes ? call.key_dim : round_up(call.key_dim, call.kernels->lanes);
  }
  static Index out_stride(const AttentionCall<A>& call) {
    if (call.matrix_unit != nullptr) return round_up(call.value_dim, MatrixUnit::kRows);
    return call.plan.rows_are_lanes ? call.value_dim : padded_value_dim(call);
  }
  /// A row of values, padded to whole vectors: what partial and merged states hold.
  static Index padded_value_dim(const AttentionCall<A>& call) {
    return round_up(call.value_dim, call.kernels->lanes);
  }
  /// Keys of a tile, padded to whole vectors, in the matrix form to whole chunks.
  static Index tile_keys(const AttentionCall<A>& call) {
    const Index step = call.matrix_unit == nullptr ? call.kernels->lanes : 2 * MatrixUnit::kPairs;
    return (std::min)(call.plan.key_tile, round_up(call.key_length, step));
  }
  /// Pairs of a packed key, and of the keys of a packed line of values: 16 more than the tile's, so
  /// that the lines of 16 dims do not compete for a few sets of the cache.
  static Index key_stride(const AttentionCall<A>& call) {
    return round_up(call.key_dim, 2 * MatrixUnit::kPairs) / 2;
  }
  static Index value_stride(const AttentionCall<A>& call) {
    return tile_keys(call) / 2 + MatrixUnit::kPairs;
  }

 private:
  static Index block_rows(const AttentionCall<A>& call) {
    if (!call.plan.rows_are_lanes) return call.rows();
    return (std::min)(call.plan.row_block, round_up(call.rows(), call.plan.row_tile));
  }
};

/// The unmerged states of a split key range: [batch, group, split, row] of (out, max, sum).
template <class A>
struct PartialStates {
  A *out, *max, *sum;
  Index out_stride;

  PartialStates(const AttentionCall<A>& call, Arena& arena)
      : out_stride(Scratch<A>::padded_value_dim(call)) {
    const Index states =
        !call.is_split() ? 0 : call.batch * call.num_groups * call.num_splits() * call.rows();
    out = arena.take<A>(states * out_stride);
    max = arena.take<A>(states);
    sum = arena.take<A>(states);
  }

  /// Where the state of a row lies; `group` counts the groups of all batches.
  static Index place(const AttentionCall<A>& call, Index group, Index split, Index row) {
    return (group * call.num_splits() + split) * call.rows() + row;
  }
};

/// Everything a call works in, carved from one block.
template <class A>
std::size_t scratch_bytes(const AttentionCall<A>& call, Index workers) {
  Arena arena;
  const PartialStates<A> partial(call, arena);
  const std::size_t shared = arena.used();
  const Scratch<A> scratch(call, arena);
  return shared + (arena.used() - shared) * static_cast<std::size_t>(workers);
}

inline namespace ATTN_ERRORS {

/// The caller's workspace, or memory of our own for the time of the call.
class WorkMemory {
 public:
  /// `query`: the function that tells how many bytes such a call needs.
  WorkMemory(const CallShapes& call, const Workspace& workspace, std::size_t bytes,
             const char* query = "attention_workspace_bytes") {
    if (workspace.data == nullptr && workspace.bytes != 0) {
      call.raise_option("options.workspace is null, but says that it holds " +
                        std::to_string(workspace.bytes) + " bytes");
    }
    if (bytes == 0) return;
    if (workspace.data == nullptr) {
      owned_ = ::operator new (bytes, std::align_val_t{Arena::kAlignment});
      data_ = owned_;
      return;
    }
    const std::size_t misaligned =
        reinterpret_cast<std::uintptr_t>(workspace.data) % Arena::kAlignment;
    const std::size_t skip = misaligned == 0 ? 0 : Arena::kAlignment - misaligned;
    if (workspace.bytes < bytes + skip) {
      call.raise_option(std::string("options.workspace is too small: ") + query + " asks for " +
                        std::to_string(bytes + Arena::kAlignment) + " bytes, got " +
                        std::to_string(workspace.bytes));
    }
    data_ = static_cast<char*>(workspace.data) + skip;
  }
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;
  ~WorkMemory() {
    if (owned_ != nullptr) ::operator delete (owned_, std::align_val_t{Arena::kAlignment});
  }

  void* data() const { return data_; }

 private:
  void* owned_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace ATTN_ERRORS
}  // namespace detail
}  // namespace attn

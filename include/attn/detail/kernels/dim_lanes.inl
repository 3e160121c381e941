// attn/detail/kernels/dim_lanes.inl - tiles with one lane a dim or key: decode. A part of
// kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

template <class Element>
ATTN_SIMD_INLINE const Element* row_of(const RowRun& run, Index j) {
  return reinterpret_cast<const Element*>(static_cast<const char*>(run.first) + j * run.stride);
}
/// Rows begin .. begin + count - 1 of a run, or fewer at its end.
ATTN_SIMD_INLINE RowRun part_of(const RowRun& run, Index begin, Index count) {
  const Index rest = run.count - begin;
  const std::uintptr_t moved = static_cast<std::uintptr_t>(begin * run.stride);
  return {static_cast<const char*>(run.first) + begin * run.stride, run.stride,
          count < rest ? count : rest, run.ahead + moved, run.ahead_bytes};
}
/// Prefetches some elements of the row that is ahead of row j, as far as the run asks for them.
template <class Element>
ATTN_SIMD_INLINE void prefetch_ahead(const RowRun& run, Index j, Index first, Index count) {
  constexpr Index kSize = sizeof(Element);
  const Index begin = first * kSize, end = begin + count * kSize;
  prefetch_bytes(run.ahead + static_cast<std::uintptr_t>(j * run.stride + begin),
                 (end < run.ahead_bytes ? end : run.ahead_bytes) - begin);
}

/// Rows that all queries and dims pass over before the next: they stay in the first-level cache.
constexpr Index kRunPart = 32;

/// Adds the products of one vector of dims to the sums: `count` dims, or all lanes if it is 0.
template <class A, class Element, unsigned kKeys, unsigned kRows>
ATTN_SIMD_INLINE void add_products(const Element* const* keys, Index d, Index count,
                                   const A* queries, Index query_stride,
                                   typename Simd<A>::Vec (*sum)[kRows]) {
  using Vec = typename Simd<A>::Vec;
  Vec key[kKeys];
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) {
    key[j] = count == 0 ? load(keys[j] + d) : load_first(keys[j] + d, count);
  }
  ATTN_SIMD_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    const Vec query = load(queries + r * query_stride + d);
    ATTN_SIMD_UNROLL
    for (unsigned j = 0; j < kKeys; ++j) sum[j][r] = multiply_add(key[j], query, sum[j][r]);
  }
}

/// The scores of kRows queries, as many as a vector has parts of 16 bytes, against as many keys as
/// 16 bytes hold scores: their sums over dim fill one vector, whose part r belongs to row r. (Fewer
/// rows fill its first parts.) `keys` are so many, or fewer.
template <class A, class Element, unsigned kRows>
ATTN_SIMD_INLINE void dot_block(const RowRun& keys, Index dim, const A* queries, Index query_stride,
                                A scale, A* scores, Index stride) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  constexpr unsigned kKeys = 16 / sizeof(A);
  const Element* key[kKeys];
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) {
    key[j] = row_of<Element>(keys, j < keys.count ? j : 0);
  }
  Vec sum[kKeys][kRows] = {};
  // One or two rows wait for memory, which comes fastest in the order in which it lies: one key
  // after the other. More rows share what is loaded of all keys.
  constexpr unsigned kStep = kRows <= 2 ? 1 : kKeys;
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; j += kStep) {
    Index d = 0;
    if constexpr (kStep == 1) {  // unrolled, so that more loads wait for memory at the same time
      for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
        ATTN_SIMD_UNROLL
        for (Index v = 0; v < 4; ++v) {
          add_products<A, Element, kStep, kRows>(key + j, d + v * kLanes, 0, queries, query_stride,
                                                 sum + j);
        }
      }
    }
    for (; d + kLanes <= dim; d += kLanes) {
      add_products<A, Element, kStep, kRows>(key + j, d, 0, queries, query_stride, sum + j);
    }
    if (d < dim) {
      add_products<A, Element, kStep, kRows>(key + j, d, dim - d, queries, query_stride, sum + j);
    }
  }
  Vec parts[kKeys];
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) parts[j] = fold_to_parts<A, kRows>(sum[j]);
  A total[Simd<A>::kLanes];
  store(total, fold_parts(parts) * broadcast(scale));
  ATTN_SIMD_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    if (keys.count == kKeys) {
      __builtin_memcpy(scores + r * stride, total + r * kKeys, 16);
    } else {
      for (Index j = 0; j < keys.count; ++j) scores[r * stride + j] = total[r * kKeys + j];
    }
  }
}

template <class A, class Element, unsigned kRows>
ATTN_SIMD_INLINE void dot_rows(const RowRun& keys, Index dim, const A* queries, Index query_stride,
                               A scale, A* scores, Index stride) {
  constexpr Index kKeys = 16 / sizeof(A);
  for (Index j = 0; j < keys.count; j += kKeys) {
    const RowRun block = part_of(keys, j, kKeys);
    for (Index i = 0; i < block.count; ++i) prefetch_ahead<Element>(block, i, 0, dim);
    dot_block<A, Element, kRows>(block, dim, queries, query_stride, scale, scores + j, stride);
  }
}

/// Calls CALL(number of rows) for groups of rows: as many as kMax, then halves of it.
#define ATTN_FOR_EACH_ROW_GROUP(kMax, CALL) \
  Index r = 0;                              \
  for (; r + kMax <= rows; r += kMax) {     \
    CALL(kMax);                             \
  }                                         \
  if constexpr (kMax > 2) {                 \
    if (r + 2 <= rows) {                    \
      CALL(2);                              \
      r += 2;                               \
    }                                       \
  }                                         \
  if constexpr (kMax > 1) {                 \
    if (r < rows) {                         \
      CALL(1);                              \
    }                                       \
  }

template <class A, class Element>
void dim_scores(const RowRun& keys, Index dim, const A* queries, Index query_stride, Index rows,
                A scale, A* scores, Index stride) {
  constexpr unsigned kMaxRows = ATTN_SIMD_BYTES / 16;
  for (Index j = 0; j < keys.count; j += kRunPart) {
    RowRun part = part_of(keys, j, kRunPart);
#define ATTN_CALL(N)                                                                  \
  dot_rows<A, Element, N>(part, dim, queries + r * query_stride, query_stride, scale, \
                          scores + r * stride + j, stride);                           \
  part.ahead_bytes = 0
    ATTN_FOR_EACH_ROW_GROUP(kMaxRows, ATTN_CALL)
#undef ATTN_CALL
  }
}

template <class A>
bool dim_softmax(A* scores, Index num_keys, Index rows, Index stride, A* max, A* sum,
                 A* correction) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  bool any = false;
  for (Index r = 0; r < rows; ++r) {
    A* const line = scores + r * stride;
    Vec top = load(line);
    for (Index j = kLanes; j < num_keys; j += kLanes) top = maximum(load(line + j), top);
    Vec highest = broadcast(max[r]), shift;
    const Vec factor = advance_max<A>(broadcast(max_lanes<A>(top)), highest, shift);
    Vec total = {};
    for (Index j = 0; j < num_keys; j += kLanes) {
      const Vec weight = exp_below<A>(load(line + j) - shift);
      store(line + j, weight);
      total = total + weight;
    }
    max[r] = highest[0];
    correction[r] = factor[0];
    any |= as_bits(factor)[0] != as_bits(broadcast(A(1)))[0];
    sum[r] = multiply_add(broadcast(sum[r]), factor, broadcast(sum_lanes<A>(total)))[0];
  }
  return any;
}

template <class A>
void dim_weights(A* scores, Index count, A max, A divisor) {
  using S = Simd<A>;
  const typename S::Vec shift = shift_of<A>(broadcast(max)), denominator = broadcast(divisor);
  for (Index j = 0; j < count; j += S::kLanes) {
    const typename S::Vec score = load(scores + j);
    const auto is_absent = equal(as_bits(score), S::kMinusInfinity - typename S::IntVec{});
    const typename S::Vec weight = divide(exp_below<A>(score - shift), denominator);
    store(scores + j, as_float(as_bits(weight) & ~is_absent));
  }
}

template <class A>
void dim_divide(A* out, Index rows, Index dim, Index stride, const A* divisor) {
  const auto zero = as_written(broadcast(A(0)));  // -0 becomes 0, as in row_divide
  for (Index r = 0; r < rows; ++r) {
    const auto denominator = broadcast(divisor[r]);
    for (Index d = 0; d < dim; d += Simd<A>::kLanes) {
      A* const at = out + r * stride + d;
      store(at, divide(load(at) + zero, denominator));
    }
  }
}

/// Adds the values of kVectors vectors of dims; a vector alone may have `count` dims, fewer
/// than its lanes, of which `out` holds all.
template <class A, class Element, unsigned kRows, unsigned kVectors>
ATTN_SIMD_INLINE void axpy_block(const RowRun& values, Index first_dim, Index count,
                                 const A* weights, Index weight_stride, const A* correction, A* out,
                                 Index out_stride) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec sum[kRows][kVectors];
  ATTN_SIMD_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    const Vec factor = broadcast(correction == nullptr ? A(1) : correction[r]);
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      sum[r][v] = load(out + r * out_stride + v * kLanes) * factor;
    }
  }
  for (Index j = 0; j < values.count; ++j) {
    prefetch_ahead<Element>(values, j, first_dim, kVectors * kLanes);
    const Element* const row = row_of<Element>(values, j) + first_dim;
    Vec value[kVectors];
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      value[v] = kVectors > 1 || count == kLanes ? load(row + v * kLanes) : load_first(row, count);
    }
    ATTN_SIMD_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[r * weight_stride + j]);
      ATTN_SIMD_UNROLL
      for (unsigned v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(weight, value[v], sum[r][v]);
    }
  }
  ATTN_SIMD_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sum[r][v]);
  }
}

template <class A, class Element, unsigned kRows>
ATTN_SIMD_INLINE void axpy_rows(const RowRun& values, Index dim, const A* weights,
                                Index weight_stride, const A* correction, A* out,
                                Index out_stride) {
  constexpr Index kLanes = Simd<A>::kLanes;
  constexpr unsigned kSums = ATTN_SIMD_X86 == 4 ? 16 : 8;  // of 32 or 16 registers
  constexpr unsigned kWide = kSums / kRows < 8 ? kSums / kRows : 8;
  Index d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    axpy_block<A, Element, kRows, kWide>(values, d, kWide * kLanes, weights, weight_stride,
                                         correction, out + d, out_stride);
  }
  for (; d < dim; d += kLanes) {
    const Index count = dim - d < kLanes ? dim - d : kLanes;
    axpy_block<A, Element, kRows, 1>(values, d, count, weights, weight_stride, correction, out + d,
                                     out_stride);
  }
}

template <class A, class Element>
void dim_accumulate(const RowRun& values, Index dim, const A* weights, Index weight_stride,
                    Index rows, const A* correction, A* out, Index out_stride) {
  for (Index j = 0; j < values.count; j += kRunPart) {
    RowRun part = part_of(values, j, kRunPart);
    const A* const factor = j == 0 ? correction : nullptr;
#define ATTN_CALL(N)                                                                       \
  axpy_rows<A, Element, N>(part, dim, weights + r * weight_stride + j, weight_stride,      \
                           factor == nullptr ? nullptr : factor + r, out + r * out_stride, \
                           out_stride);                                                    \
  part.ahead_bytes = 0
    ATTN_FOR_EACH_ROW_GROUP(4, ATTN_CALL)
#undef ATTN_CALL
  }
}
#undef ATTN_FOR_EACH_ROW_GROUP

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

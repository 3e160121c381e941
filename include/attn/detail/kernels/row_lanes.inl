// attn/detail/kernels/row_lanes.inl - tiles with one lane a row: prefill. A part of kernels.inl,
// which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

template <class A>
struct Registers {
#if ATTN_SIMD_X86 == 4
  static constexpr unsigned kLines = 8, kVectors = 3;  // 24 accumulators of 32 registers
  static constexpr Index kTileVectors = 3;
#elif ATTN_SIMD_X86 == 3
  static constexpr unsigned kLines = 4, kVectors = 3;  // 12 of 16
  static constexpr Index kTileVectors = 3;
#elif defined(__aarch64__)
  // 16 of 32 keep four units of latency 4 busy. With 24, GCC 12 loads so early that it spills.
  static constexpr unsigned kLines = 4, kVectors = 4;
  static constexpr Index kTileVectors = 4;
#else
  static constexpr unsigned kLines = 3, kVectors = 4;  // 12 of 16
  static constexpr Index kTileVectors = 4;
#endif
};

// With AVX-512 the two blocks are functions of their own: inlined into the loops around them, GCC
// 12 runs out of general registers, keeps some in vector registers, and reads one of three vectors
// of queries from the stack instead, eight times a step: 6 % of prefill. Smaller blocks do not need
// it, and a call costs them 1 to 4 %.
#if ATTN_SIMD_X86 == 4
#define ATTN_BLOCK __attribute__((noinline))
#else
#define ATTN_BLOCK ATTN_SIMD_INLINE
#endif

template <class A, unsigned kKeys, unsigned kVectors>
ATTN_BLOCK void score_block(RowPointers keys, Index dim, const A* queries, Index query_stride,
                            A scale, A* scores, Index stride) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec sum[kKeys][kVectors] = {};
  const A* key[kKeys];
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) key[j] = static_cast<const A*>(keys[j]);
  for (Index d = 0; d < dim; ++d) {
    Vec query[kVectors];
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v)
      query[v] = load(queries + d * query_stride + v * kLanes);
    ATTN_SIMD_UNROLL
    for (unsigned j = 0; j < kKeys; ++j) {
      const Vec k = broadcast(key[j][d]);
      ATTN_SIMD_UNROLL
      for (unsigned v = 0; v < kVectors; ++v) sum[j][v] = multiply_add(k, query[v], sum[j][v]);
    }
  }
  const Vec factor = broadcast(scale);
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) {
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v)
      store(scores + j * stride + v * kLanes, sum[j][v] * factor);
  }
}

template <class A, unsigned kVectors>
ATTN_SIMD_INLINE void score_columns(RowPointers keys, Index num_keys, Index dim, const A* queries,
                                    Index query_stride, A scale, A* scores, Index stride,
                                    const Prefetch& ahead) {
  constexpr unsigned kKeys = Registers<A>::kLines;
  Index j = 0;
  for (; j + kKeys <= num_keys; j += kKeys) {
    for (Index i = j; i < j + Index(kKeys); ++i) prefetch_row(ahead, i);
    score_block<A, kKeys, kVectors>(keys + j, dim, queries, query_stride, scale,
                                    scores + j * stride, stride);
  }
  for (; j < num_keys; ++j) {
    score_block<A, 1, kVectors>(keys + j, dim, queries, query_stride, scale, scores + j * stride,
                                stride);
  }
}

/// Calls f<kVectors>(first lane) for groups of vectors that fit the registers.
#define ATTN_FOR_EACH_COLUMN_GROUP(CALL)                      \
  constexpr Index kLanes = Simd<A>::kLanes;                   \
  constexpr unsigned kGroup = Registers<A>::kVectors;         \
  Index r = 0;                                                \
  for (; r + kGroup * kLanes <= rows; r += kGroup * kLanes) { \
    CALL(kGroup);                                             \
  }                                                           \
  if (kGroup > 2 && r + 2 * kLanes <= rows) {                 \
    CALL(2);                                                  \
    r += 2 * kLanes;                                          \
  }                                                           \
  if (r < rows) {                                             \
    CALL(1);                                                  \
  }

template <class A>
void row_scores(RowPointers keys, Index num_keys, Index dim, const A* queries, Index query_stride,
                Index rows, A scale, A* scores, Index stride, const Prefetch& ahead) {
  Prefetch once = ahead;
#define ATTN_CALL(N)                                                                             \
  score_columns<A, N>(keys, num_keys, dim, queries + r, query_stride, scale, scores + r, stride, \
                      once);                                                                     \
  once.bytes = 0
  ATTN_FOR_EACH_COLUMN_GROUP(ATTN_CALL)
#undef ATTN_CALL
}

/// advance_max for vectors of rows whose tops are in `correction`, which becomes the factors.
/// Returns whether any of them differs from 1. Not inlined: once a copy is enough.
template <class A>
__attribute__((noinline)) bool advance_rows(A* max, A* correction, Index rows) {
  using S = Simd<A>;
  typename S::IntVec moved = {};
  for (Index r = 0; r < rows; r += S::kLanes) {
    typename S::Vec highest = load(max + r), shift;
    const typename S::Vec factor = advance_max<A>(load(correction + r), highest, shift);
    store(max + r, highest);
    store(correction + r, factor);
    moved |= as_bits(factor) ^ as_bits(broadcast(A(1)));
  }
  return has_bits(moved);
}

template <class A, unsigned kVectors>
ATTN_SIMD_INLINE bool softmax_columns(A* scores, Index num_keys, Index stride, A* max, A* sum,
                                      A* correction) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec top[kVectors], shift[kVectors], total[kVectors] = {};
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) top[v] = load(scores + v * kLanes);
  for (Index j = 1; j < num_keys; ++j) {
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      top[v] = maximum(load(scores + j * stride + v * kLanes), top[v]);
    }
  }
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) store(correction + v * kLanes, top[v]);
  const bool any = advance_rows(max, correction, kVectors * kLanes);
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) shift[v] = shift_of<A>(load(max + v * kLanes));
  for (Index j = 0; j < num_keys; ++j) {
    A* const line = scores + j * stride;
    Vec weight[kVectors];
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) weight[v] = load(line + v * kLanes) - shift[v];
    exp_each<A, kVectors>(weight);
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      store(line + v * kLanes, weight[v]);
      total[v] = total[v] + weight[v];
    }
  }
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    store(sum + v * kLanes,
          multiply_add(load(sum + v * kLanes), load(correction + v * kLanes), total[v]));
  }
  return any;
}

template <class A>
bool row_softmax(A* scores, Index num_keys, Index rows, Index stride, A* max, A* sum,
                 A* correction) {
  constexpr Index kLanes = Simd<A>::kLanes, kGroup = Registers<A>::kVectors * kLanes;
  bool any = false;
  Index r = 0;
  for (; r + kGroup <= rows; r += kGroup) {
    any |= softmax_columns<A, Registers<A>::kVectors>(scores + r, num_keys, stride, max + r,
                                                      sum + r, correction + r);
  }
  for (; r < rows; r += kLanes) {
    any |= softmax_columns<A, 1>(scores + r, num_keys, stride, max + r, sum + r, correction + r);
  }
  return any;
}

template <class A, unsigned kDims, unsigned kVectors>
ATTN_BLOCK void accumulate_block(RowPointers values, Index num_keys, Index first_dim,
                                 const A* weights, Index weight_stride, const A* correction, A* out,
                                 Index out_stride, const Prefetch& ahead) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec sum[kDims][kVectors];
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    if (correction != nullptr) {
      const Vec factor = load(correction + v * kLanes);
      ATTN_SIMD_UNROLL
      for (unsigned d = 0; d < kDims; ++d) {
        sum[d][v] = load(out + d * out_stride + v * kLanes) * factor;
      }
    } else {
      ATTN_SIMD_UNROLL
      for (unsigned d = 0; d < kDims; ++d) sum[d][v] = load(out + d * out_stride + v * kLanes);
    }
  }
  for (Index j = 0; j < num_keys; ++j) {
    const A* const value = static_cast<const A*>(values[j]) + first_dim;
    prefetch_row(ahead, j);
    Vec weight[kVectors];
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v)
      weight[v] = load(weights + j * weight_stride + v * kLanes);
    ATTN_SIMD_UNROLL
    for (unsigned d = 0; d < kDims; ++d) {
      const Vec x = broadcast(value[d]);
      ATTN_SIMD_UNROLL
      for (unsigned v = 0; v < kVectors; ++v) sum[d][v] = multiply_add(x, weight[v], sum[d][v]);
    }
  }
  ATTN_SIMD_UNROLL
  for (unsigned d = 0; d < kDims; ++d) {
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) store(out + d * out_stride + v * kLanes, sum[d][v]);
  }
}

#undef ATTN_BLOCK

template <class A, unsigned kVectors>
ATTN_SIMD_INLINE void accumulate_columns(RowPointers values, Index num_keys, Index dim,
                                         const A* weights, Index weight_stride, const A* correction,
                                         A* out, Index out_stride, const Prefetch& ahead) {
  constexpr unsigned kDims = Registers<A>::kLines;
  if (dim == 0) return;
  // Each block of dims prefetches its own part of the rows: evenly spread over the work.
  Prefetch part = ahead;
  part.bytes = (ahead.bytes + dim - 1) / dim * kDims;
  Index d = 0;
  for (; d + kDims <= dim; d += kDims) {
    part.offset = d * ahead.bytes / dim;
    accumulate_block<A, kDims, kVectors>(values, num_keys, d, weights, weight_stride, correction,
                                         out + d * out_stride, out_stride, part);
  }
  for (; d < dim; ++d) {
    accumulate_block<A, 1, kVectors>(values, num_keys, d, weights, weight_stride, correction,
                                     out + d * out_stride, out_stride, Prefetch{});
  }
}

template <class A>
void row_accumulate(RowPointers values, Index num_keys, Index dim, const A* weights,
                    Index weight_stride, Index rows, const A* correction, A* out, Index out_stride,
                    const Prefetch& ahead) {
  Prefetch once = ahead;
#define ATTN_CALL(N)                                                                              \
  accumulate_columns<A, N>(values, num_keys, dim, weights + r, weight_stride,                     \
                           correction == nullptr ? nullptr : correction + r, out + r, out_stride, \
                           once);                                                                 \
  once.bytes = 0
  ATTN_FOR_EACH_COLUMN_GROUP(ATTN_CALL)
#undef ATTN_CALL
}
#undef ATTN_FOR_EACH_COLUMN_GROUP

template <class A>
void row_divide(A* out, Index dim, Index rows, Index stride, const A* divisor) {
  // A sum of -0 becomes 0, as it would by one more key of weight 0: whether such keys were added or
  // left out must not show.
  const auto zero = as_written(broadcast(A(0)));
  for (Index d = 0; d < dim; ++d) {
    for (Index r = 0; r < rows; r += Simd<A>::kLanes) {
      A* const at = out + d * stride + r;
      store(at, divide(load(at) + zero, load(divisor + r)));
    }
  }
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

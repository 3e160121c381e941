// attn/detail/kernels/dim_lanes.inl - tiles with one lane a dim or key: decode. A part of
// kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

/// One key against kRows queries. Keys are read one after the other, as they lie in memory: several
/// at a time would hide their order from the hardware's prefetching.
template <class A, unsigned kRows>
ATTN_SIMD_INLINE void dot_key(const A* key, Index dim, const A* queries, Index query_stride,
                              A scale, A* scores, Index stride) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec sum[kRows] = {};
  Index d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Vec k = load(key + d);
    ATTN_SIMD_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      sum[r] = multiply_add(k, load(queries + r * query_stride + d), sum[r]);
    }
  }
  if (d < dim) {
    const Vec k = load_first(key + d, dim - d);
    ATTN_SIMD_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      sum[r] = multiply_add(k, load(queries + r * query_stride + d), sum[r]);
    }
  }
  ATTN_SIMD_UNROLL
  for (unsigned r = 0; r < kRows; ++r) scores[r * stride] = sum_lanes<A>(sum[r]) * scale;
}

/// To the second-level cache, one cache line at a time.
ATTN_SIMD_INLINE void prefetch_row(const Prefetch& ahead, Index j) {
  const std::uintptr_t first = ahead.rows != nullptr
                                   ? reinterpret_cast<std::uintptr_t>(ahead.rows[j])
                                   : ahead.first + static_cast<std::uintptr_t>(j) * ahead.stride;
  for (Index i = 0; i < ahead.bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + static_cast<std::uintptr_t>(i)), 0, 2);
  }
}

template <class A, unsigned kRows>
ATTN_SIMD_INLINE void dot_rows(const A* const* keys, Index num_keys, Index dim, const A* queries,
                               Index query_stride, A scale, A* scores, Index stride,
                               const Prefetch& ahead) {
  for (Index j = 0; j < num_keys; ++j) {
    prefetch_row(ahead, j);
    dot_key<A, kRows>(keys[j], dim, queries, query_stride, scale, scores + j, stride);
  }
}

template <class A>
void dim_scores(const A* const* keys, Index num_keys, Index dim, const A* queries,
                Index query_stride, Index rows, A scale, A* scores, Index stride,
                const Prefetch& ahead) {
  Prefetch once = ahead;
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {
    dot_rows<A, 4>(keys, num_keys, dim, queries + r * query_stride, query_stride, scale,
                   scores + r * stride, stride, once);
    once.bytes = 0;
  }
  for (; r < rows; ++r) {
    dot_rows<A, 1>(keys, num_keys, dim, queries + r * query_stride, query_stride, scale,
                   scores + r * stride, stride, once);
    once.bytes = 0;
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

template <class A, unsigned kRows, unsigned kVectors>
ATTN_SIMD_INLINE void axpy_block(const A* const* values, Index num_keys, Index first_dim,
                                 const A* weights, Index weight_stride, const A* correction, A* out,
                                 Index out_stride, const Prefetch& ahead) {
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
  for (Index j = 0; j < num_keys; ++j) {
    prefetch_row(ahead, j);
    Vec value[kVectors];
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) value[v] = load(values[j] + first_dim + v * kLanes);
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

/// The last, incomplete vector of the dims.
template <class A>
ATTN_SIMD_INLINE void axpy_tail(const A* const* values, Index num_keys, Index first_dim,
                                Index count, const A* weights, A factor, A* out) {
  using Vec = typename Simd<A>::Vec;
  Vec sum = load(out) * broadcast(factor);
  for (Index j = 0; j < num_keys; ++j) {
    sum = multiply_add(broadcast(weights[j]), load_first(values[j] + first_dim, count), sum);
  }
  store(out, sum);
}

template <class A, unsigned kRows>
ATTN_SIMD_INLINE void axpy_rows(const A* const* values, Index num_keys, Index dim, const A* weights,
                                Index weight_stride, const A* correction, A* out, Index out_stride,
                                const Prefetch& ahead) {
  constexpr Index kLanes = Simd<A>::kLanes;
  constexpr unsigned kWide = kRows == 1 ? 8 : ATTN_SIMD_X86 == 4 ? 4 : 2;
  Prefetch once = ahead;
  Index d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    axpy_block<A, kRows, kWide>(values, num_keys, d, weights, weight_stride, correction, out + d,
                                out_stride, once);
    once.bytes = 0;
  }
  for (; d + kLanes <= dim; d += kLanes) {
    axpy_block<A, kRows, 1>(values, num_keys, d, weights, weight_stride, correction, out + d,
                            out_stride, once);
    once.bytes = 0;
  }
  if (d < dim) {
    for (Index r = 0; r < kRows; ++r) {
      axpy_tail<A>(values, num_keys, d, dim - d, weights + r * weight_stride,
                   correction == nullptr ? A(1) : correction[r], out + r * out_stride + d);
    }
  }
}

template <class A>
void dim_accumulate(const A* const* values, Index num_keys, Index dim, const A* weights,
                    Index weight_stride, Index rows, const A* correction, A* out, Index out_stride,
                    const Prefetch& ahead) {
  Prefetch once = ahead;
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {
    axpy_rows<A, 4>(values, num_keys, dim, weights + r * weight_stride, weight_stride,
                    correction == nullptr ? nullptr : correction + r, out + r * out_stride,
                    out_stride, once);
    once.bytes = 0;
  }
  for (; r < rows; ++r) {
    axpy_rows<A, 1>(values, num_keys, dim, weights + r * weight_stride, weight_stride,
                    correction == nullptr ? nullptr : correction + r, out + r * out_stride,
                    out_stride, once);
    once.bytes = 0;
  }
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

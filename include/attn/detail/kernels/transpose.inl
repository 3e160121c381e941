// attn/detail/kernels/transpose.inl - matrices turned round, block by block. A part of kernels.inl,
// which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

// A line of a block is 16 bytes; where vectors have 32, two lines lie side by side in one, so that
// shuffles stay within 16 bytes, where they are cheap. (Of 64-byte vectors half of a block's work
// would be to fill them.)
#if ATTN_SIMD_X86 >= 3
#define ATTN_LINE_BYTES 32
#else
#define ATTN_LINE_BYTES 16
#endif

template <class Element>
struct Line;
template <>
struct Line<float> {
  typedef float Vec __attribute__((vector_size(ATTN_LINE_BYTES)));
  typedef float VecAt __attribute__((vector_size(ATTN_LINE_BYTES), aligned(4), may_alias));
  typedef float PartAt __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::int32_t Lanes __attribute__((vector_size(ATTN_LINE_BYTES)));
  static constexpr Index kLanes = ATTN_LINE_BYTES / 4;
};
template <>
struct Line<double> {
  typedef double Vec __attribute__((vector_size(ATTN_LINE_BYTES)));
  typedef double VecAt __attribute__((vector_size(ATTN_LINE_BYTES), aligned(8), may_alias));
  typedef double PartAt __attribute__((vector_size(16), aligned(8), may_alias));
  typedef std::int64_t Lanes __attribute__((vector_size(ATTN_LINE_BYTES)));
  static constexpr Index kLanes = ATTN_LINE_BYTES / 8;
};
template <>
struct Line<unsigned char> {
  typedef unsigned char Vec __attribute__((vector_size(16)));
  typedef unsigned char VecAt __attribute__((vector_size(16), aligned(1), may_alias));
  typedef unsigned char Lanes __attribute__((vector_size(16)));
  static constexpr Index kLanes = 16;
};

/// Which lane of the pair (a, b) goes to lane i when the lower (kHalf 0) or upper halves of each
/// 16-byte part are interleaved.
template <class Element, Index kHalf>
constexpr Index interleaved_lane(Index i) {
  constexpr Index kPart = 16 / Index(sizeof(Element));
  const Index part = i / kPart, x = i % kPart;
  return x % 2 * Line<Element>::kLanes + part * kPart + kHalf * (kPart / 2) + x / 2;
}
template <class Element, Index kHalf, std::size_t... kLane>
ATTN_SIMD_INLINE typename Line<Element>::Vec interleave(typename Line<Element>::Vec a,
                                                        typename Line<Element>::Vec b,
                                                        std::index_sequence<kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, interleaved_lane<Element, kHalf>(kLane)...);
#else
  return __builtin_shuffle(
      a, b, typename Line<Element>::Lanes{interleaved_lane<Element, kHalf>(kLane)...});
#endif
}

/// Turns the lines of a block to its columns: line i is interleaved with line i + n / 2, log2(n)
/// times.
template <class Element>
ATTN_SIMD_INLINE void turn(typename Line<Element>::Vec* x) {
  constexpr unsigned kLines = 16 / sizeof(Element);
  constexpr std::make_index_sequence<Line<Element>::kLanes> kLanes;
  ATTN_SIMD_UNROLL
  for (unsigned done = 1; done < kLines; done *= 2) {
    typename Line<Element>::Vec next[kLines];
    ATTN_SIMD_UNROLL
    for (unsigned i = 0; i < kLines / 2; ++i) {
      next[2 * i] = interleave<Element, 0>(x[i], x[i + kLines / 2], kLanes);
      next[2 * i + 1] = interleave<Element, 1>(x[i], x[i + kLines / 2], kLanes);
    }
    ATTN_SIMD_UNROLL
    for (unsigned i = 0; i < kLines; ++i) x[i] = next[i];
  }
}

/// The 16 bytes at p and, in a vector of 32, those at p + distance.
template <class A>
ATTN_SIMD_INLINE typename Line<A>::Vec load_line(const A* p, Index distance) {
  using PartAt = typename Line<A>::PartAt;
#if ATTN_LINE_BYTES == 16
  (void)distance;
  return *reinterpret_cast<const PartAt*>(p);
#else
  typedef float Part __attribute__((vector_size(16)));
  typedef float Whole __attribute__((vector_size(32)));
  const auto low = reinterpret_cast<Part>(*reinterpret_cast<const PartAt*>(p));
  const auto high = reinterpret_cast<Part>(*reinterpret_cast<const PartAt*>(p + distance));
#if defined(__clang__)
  const Whole whole = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  const Whole whole = __builtin_ia32_vinsertf128_ps256(__builtin_ia32_ps256_ps(low), high, 1);
#endif
  return reinterpret_cast<typename Line<A>::Vec>(whole);
#endif
}

/// Rows and columns of a block.
template <class A>
constexpr Index kBlockRows = Line<A>::kLanes;
template <class A>
constexpr Index kBlockColumns = 16 / sizeof(A);

/// to[c][r] = from[r][c] for a block.
template <class A>
ATTN_SIMD_INLINE void transpose_block(const A* from, Index from_stride, A* to, Index to_stride) {
  using L = Line<A>;
  constexpr unsigned kColumns = 16 / sizeof(A);
  typename L::Vec x[kColumns];
  ATTN_SIMD_UNROLL
  for (unsigned i = 0; i < kColumns; ++i) {
    x[i] = load_line(from + i * from_stride, kColumns * from_stride);
  }
  turn<A>(x);
  ATTN_SIMD_UNROLL
  for (unsigned i = 0; i < kColumns; ++i) {
    *reinterpret_cast<typename L::VecAt*>(to + i * to_stride) = x[i];
  }
}

template <class A>
void transpose(const A* from, Index from_stride, Index rows, Index columns, A* to,
               Index to_stride) {
  constexpr Index kRows = kBlockRows<A>, kColumns = kBlockColumns<A>;
  for (Index r = 0; r < rows; r += kRows) {
    Index c = 0;
    if (r + kRows <= rows) {
      for (; c + kColumns <= columns; c += kColumns) {
        transpose_block(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
      }
    }
    for (; c < columns; ++c) {
      for (Index i = r; i < rows && i < r + kRows; ++i) {
        to[c * to_stride + i] = from[i * from_stride + c];
      }
    }
  }
}

#undef ATTN_LINE_BYTES

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

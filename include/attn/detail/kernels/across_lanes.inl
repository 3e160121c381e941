// attn/detail/kernels/across_lanes.inl - sums across the lanes of a vector, always in the same
// order (lane i with lane i + n / 2, and so on), and their largest. A part of kernels.inl, which
// says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

/// Which lane of the pair (a, b) goes to lane i when groups of kGroup lanes are halved: their lower
/// (kHalf 0) or upper halves, those of a before those of b; groups of up to 16 bytes stay in their
/// 16-byte part of the vector, where shuffles are cheap.
template <class A, Index kGroup, Index kHalf>
constexpr typename Simd<A>::Int half_lane(Index i) {
  constexpr Index kLanes = Simd<A>::kLanes, kPart = 16 / Index(sizeof(A));
  constexpr Index kBlock = kGroup > kPart ? kLanes : kPart;
  const Index block = i / kBlock, x = i % kBlock;
  const Index from = x / (kBlock / 2), y = x % (kBlock / 2);
  return static_cast<typename Simd<A>::Int>(from * kLanes + block * kBlock +
                                            y / (kGroup / 2) * kGroup + y % (kGroup / 2) +
                                            kHalf * (kGroup / 2));
}
template <class A, Index kGroup, Index kHalf, class Vec, std::size_t... kLane>
ATTN_SIMD_INLINE Vec take_halves(Vec a, Vec b, std::index_sequence<kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, half_lane<A, kGroup, kHalf>(kLane)...);
#else
  return __builtin_shuffle(a, b, typename Simd<A>::IntVec{half_lane<A, kGroup, kHalf>(kLane)...});
#endif
}
/// Adds the upper to the lower half of each group of kGroup lanes.
template <class A, Index kGroup, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec fold(Vec a, Vec b) {
  constexpr std::make_index_sequence<Simd<A>::kLanes> kLanes;
  return take_halves<A, kGroup, 0>(a, b, kLanes) + take_halves<A, kGroup, 1>(a, b, kLanes);
}

/// Folds kRows vectors, a power of two, to one, whose 16-byte part r is what is left of row r.
template <class A, unsigned kRows, Index kGroup = Simd<A>::kLanes>
ATTN_SIMD_INLINE typename Simd<A>::Vec fold_to_parts(const typename Simd<A>::Vec* rows) {
  if constexpr (kGroup * Index(sizeof(A)) <= 16) {
    return rows[0];
  } else if constexpr (kRows == 1) {
    const typename Simd<A>::Vec half = fold<A, kGroup>(rows[0], rows[0]);
    return fold_to_parts<A, 1, kGroup / 2>(&half);
  } else {
    typename Simd<A>::Vec half[kRows / 2];
    ATTN_SIMD_UNROLL
    for (unsigned r = 0; r < kRows / 2; ++r) {
      half[r] = fold<A, kGroup>(rows[2 * r], rows[2 * r + 1]);
    }
    return fold_to_parts<A, kRows / 2, kGroup / 2>(half);
  }
}
/// Folds the parts of 16 / sizeof(A) vectors: lane i of each part is the sum over that of vector i.
ATTN_SIMD_INLINE FloatVec fold_parts(const FloatVec* x) {
  return fold<float, 2>(fold<float, 4>(x[0], x[1]), fold<float, 4>(x[2], x[3]));
}
ATTN_SIMD_INLINE DoubleVec fold_parts(const DoubleVec* x) { return fold<double, 2>(x[0], x[1]); }

template <class A>
ATTN_SIMD_INLINE A sum_lanes(typename Simd<A>::Vec x) {
  const typename Simd<A>::Vec part = fold_to_parts<A, 1>(&x);
  const typename Simd<A>::Vec same[] = {part, part, part, part};
  return fold_parts(same)[0];
}
/// The largest lane; any of them where one is NaN.
template <class A, Index kGroup = Simd<A>::kLanes>
ATTN_SIMD_INLINE A max_lanes(typename Simd<A>::Vec x) {
  if constexpr (kGroup == 1) {
    return x[0];
  } else {
    constexpr std::make_index_sequence<Simd<A>::kLanes> kLanes;
    return max_lanes<A, kGroup / 2>(
        maximum(take_halves<A, kGroup, 0>(x, x, kLanes), take_halves<A, kGroup, 1>(x, x, kLanes)));
  }
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

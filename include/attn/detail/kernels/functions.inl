// attn/detail/kernels/functions.inl - exp, tanh, and the maximum of a softmax. A part of
// kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

template <class A>
struct ExpConstants;
// 2^r = 1 + r * (c0 + c1 r + ...) on [-1/2, 1/2], interpolated at Chebyshev nodes.
template <>
struct ExpConstants<float> {
  // Largest relative error of the polynomial: 9.2e-9.
  static constexpr float kCoefficients[] = {0x1.62e43p-1f,  0x1.ebfbep-3f,  0x1.c6af6cp-5f,
                                            0x1.3b2a54p-7f, 0x1.5f089p-10f, 0x1.44138ap-13f};
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLowest = -72.0f;  // e^-72 = 2^-103.9: weights are right down to 2^-100
};
template <>
struct ExpConstants<double> {
  // Largest relative error of the polynomial: 2.1e-17.
  static constexpr double kCoefficients[] = {
      0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0c6p-5,  0x1.3b2ab6fba4e79p-7,
      0x1.5d87fe78a3f9cp-10, 0x1.430912f86b7dbp-13, 0x1.ffcbfc6da6ed1p-17, 0x1.62c02242b879cp-20,
      0x1.b524ebd13a55fp-24, 0x1.e4cf10dec0f59p-28, 0x1.e9ec1fcb69a7fp-32, 0x1.c4a29324a1038p-36};
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLowest = -700.0;  // 2^-1009.9: weights are right down to 2^-1000
};

/// Turns x to e^x, for x of at most about 88; exactly 0 below kLowest (-infinity too), NaN for NaN.
/// Relative error: (2 + |x| / 2) epsilon. Step by step for all of kCount vectors: GCC puts one
/// vector's steps behind another's otherwise, which takes 5 (AVX-512) to 17 % (SSE2) longer.
template <class A, unsigned kCount, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE void exp_each(Vec* x) {
  using C = ExpConstants<A>;
  const Vec lowest = broadcast(C::kLowest);
  typename Simd<A>::IntVec is_zero[kCount];
  Vec n[kCount], r[kCount], p[kCount];
#define ATTN_EACH  \
  ATTN_SIMD_UNROLL \
  for (unsigned i = 0; i < kCount; ++i)
  ATTN_EACH is_zero[i] = less(x[i], lowest);
  ATTN_EACH x[i] = maximum(lowest, x[i]);  // NaN stays: the second operand wins
  ATTN_EACH n[i] = round_to_nearest(x[i] * broadcast(C::kLog2E));
  ATTN_EACH r[i] = multiply_add(x[i], broadcast(C::kLog2E), -n[i]);
  constexpr int kDegree = sizeof(C::kCoefficients) / sizeof(A);
  ATTN_EACH p[i] = broadcast(C::kCoefficients[kDegree - 1]);
  ATTN_SIMD_UNROLL
  for (int c = kDegree - 2; c >= 0; --c) {
    ATTN_EACH p[i] = multiply_add(p[i], r[i], broadcast(C::kCoefficients[c]));
  }
  ATTN_EACH p[i] = multiply_add(p[i], r[i], broadcast(A(1)));
  ATTN_EACH x[i] = as_float(as_bits(scale_by_power(p[i], n[i])) & ~is_zero[i]);
#undef ATTN_EACH
}
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec exp_below(Vec x) {
  exp_each<A, 1>(&x);
  return x;
}

/// tanh(x) = x + x^3 P(x^2) / Q(x^2) near 0.
/// Source of the coefficients: S. Moshier, Cephes mathematical library (1987).
template <class Vec>
ATTN_SIMD_INLINE Vec tanh_small(Vec x, float) {
  const Vec z = x * x;
  Vec p = broadcast(-5.70498872745e-3f);
  p = multiply_add(p, z, broadcast(2.06390887954e-2f));
  p = multiply_add(p, z, broadcast(-5.37397155531e-2f));
  p = multiply_add(p, z, broadcast(1.33314422036e-1f));
  p = multiply_add(p, z, broadcast(-3.33332819422e-1f));
  return multiply_add(p * z, x, x);
}
template <class Vec>
ATTN_SIMD_INLINE Vec tanh_small(Vec x, double) {
  const Vec z = x * x;
  Vec p = broadcast(-9.64399179425052238628e-1);
  p = multiply_add(p, z, broadcast(-9.92877231001918586564e1));
  p = multiply_add(p, z, broadcast(-1.61468768441708447952e3));
  Vec q = z + broadcast(1.12811678491632931402e2);
  q = multiply_add(q, z, broadcast(2.23548839060100448583e3));
  q = multiply_add(q, z, broadcast(4.84406305325125486048e3));
  return multiply_add(divide(p, q) * z, x, x);
}

/// tanh(x), relative error below 4 epsilon; 1 and -1 at the infinities, NaN for NaN.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec tanh_of(Vec x) {
  const Vec one = broadcast(A(1));
  const auto sign = as_bits(x) & as_bits(broadcast(A(-0.0)));
  const Vec magnitude = as_float(as_bits(x) ^ sign);
  const Vec e = exp_below<A>(broadcast(A(-2)) * magnitude);
  const Vec for_large = as_float(as_bits(divide(one - e, one + e)) | sign);
  // Kept finite: the polynomial of an infinite argument would raise "invalid".
  const auto is_small = less(magnitude, broadcast(A(0.625)));
  const Vec for_small = tanh_small(as_float(as_bits(x) & is_small), A());
  return select(is_small, for_small, for_large);
}

/// How far a maximum may grow before sums and outputs are rescaled: e^kStale = 2^8.
template <class A>
constexpr A kStale = A(5.545177444479562);

/// What to subtract from the scores of rows: their max, or 0 where no key has been seen.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec shift_of(Vec max) {
  using S = Simd<A>;
  const auto is_empty = equal(as_bits(max), S::kMinusInfinity - typename S::IntVec{});
  return as_float(as_bits(max) & ~is_empty);
}

/// The first half of a softmax step: given the tile's maximum, moves `max` where it has grown by
/// more than kStale, and returns the factor for what was summed before (exactly 1 elsewhere).
/// `shift` is what to subtract from the scores then.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec advance_max(Vec top, Vec& max, Vec& shift) {
  const auto grew = less(max + broadcast(kStale<A>), top);
  // Lanes that do not move compute 0 - 0, not -infinity - -infinity, which would be invalid.
  const Vec from = as_float(as_bits(max) & grew);
  const Vec to = as_float(as_bits(top) & grew);
  const Vec correction = exp_below<A>(from - to);
  max = select(grew, top, max);
  shift = shift_of<A>(max);
  return correction;
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

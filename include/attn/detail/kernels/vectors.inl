// attn/detail/kernels/vectors.inl - vectors, and the arithmetic that has an instruction of its own.
// A part of kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

typedef float FloatVec __attribute__((vector_size(ATTN_SIMD_BYTES)));
typedef double DoubleVec __attribute__((vector_size(ATTN_SIMD_BYTES)));
typedef std::int32_t Int32Vec __attribute__((vector_size(ATTN_SIMD_BYTES)));
typedef std::int64_t Int64Vec __attribute__((vector_size(ATTN_SIMD_BYTES)));
// The same at any address, over any object.
typedef float FloatVecAt __attribute__((vector_size(ATTN_SIMD_BYTES), aligned(4), may_alias));
typedef double DoubleVecAt __attribute__((vector_size(ATTN_SIMD_BYTES), aligned(8), may_alias));

template <class A>
struct Simd;
template <>
struct Simd<float> {
  using Vec = FloatVec;
  using VecAt = FloatVecAt;
  using IntVec = Int32Vec;
  using Int = std::int32_t;
  static constexpr Index kLanes = ATTN_SIMD_BYTES / 4;
  static constexpr int kMantissaBits = 23;
  static constexpr Int kExponentMask = 0x7F800000;
  static constexpr Int kMinusInfinity = static_cast<Int>(0xFF800000u);
};
template <>
struct Simd<double> {
  using Vec = DoubleVec;
  using VecAt = DoubleVecAt;
  using IntVec = Int64Vec;
  using Int = std::int64_t;
  static constexpr Index kLanes = ATTN_SIMD_BYTES / 8;
  static constexpr int kMantissaBits = 52;
  static constexpr Int kExponentMask = 0x7FF0000000000000;
  static constexpr Int kMinusInfinity = static_cast<Int>(0xFFF0000000000000u);
};

template <class A>
ATTN_SIMD_INLINE typename Simd<A>::Vec load(const A* p) {
  return *reinterpret_cast<const typename Simd<A>::VecAt*>(p);
}
template <class A>
ATTN_SIMD_INLINE void store(A* p, typename Simd<A>::Vec x) {
  *reinterpret_cast<typename Simd<A>::VecAt*>(p) = x;
}
// x - 0 is x for every x; 0 + x is not (-0), and compiles to a slower broadcast.
ATTN_SIMD_INLINE FloatVec broadcast(float x) { return x - FloatVec{}; }
ATTN_SIMD_INLINE DoubleVec broadcast(double x) { return x - DoubleVec{}; }

ATTN_SIMD_INLINE Int32Vec as_bits(FloatVec x) { return reinterpret_cast<Int32Vec>(x); }
ATTN_SIMD_INLINE Int64Vec as_bits(DoubleVec x) { return reinterpret_cast<Int64Vec>(x); }
ATTN_SIMD_INLINE FloatVec as_float(Int32Vec x) { return reinterpret_cast<FloatVec>(x); }
ATTN_SIMD_INLINE DoubleVec as_float(Int64Vec x) { return reinterpret_cast<DoubleVec>(x); }

/// a < b for each lane, as all ones or all zeros; false for NaN.
ATTN_SIMD_INLINE Int32Vec less(FloatVec a, FloatVec b) { return reinterpret_cast<Int32Vec>(a < b); }
ATTN_SIMD_INLINE Int64Vec less(DoubleVec a, DoubleVec b) {
  return reinterpret_cast<Int64Vec>(a < b);
}
ATTN_SIMD_INLINE Int32Vec equal(Int32Vec a, Int32Vec b) {
  return reinterpret_cast<Int32Vec>(a == b);
}
ATTN_SIMD_INLINE Int64Vec equal(Int64Vec a, Int64Vec b) {
  return reinterpret_cast<Int64Vec>(a == b);
}
/// condition ? a : b for each lane.
template <class Vec, class IntVec>
ATTN_SIMD_INLINE Vec select(IntVec condition, Vec a, Vec b) {
  return as_float((condition & as_bits(a)) | (~condition & as_bits(b)));
}

/// The first `count` < kLanes elements at p, the other lanes 0. Reads nothing behind them.
template <class A>
ATTN_SIMD_INLINE typename Simd<A>::Vec load_first(const A* p, Index count) {
  typename Simd<A>::Vec x = {};
  for (Index i = 0; i < count; ++i) x[i] = p[i];
  return x;
}
template <class A>
ATTN_SIMD_INLINE void store_first(A* p, typename Simd<A>::Vec x, Index count) {
  for (Index i = 0; i < count; ++i) p[i] = x[i];
}

#if ATTN_SIMD_X86 == 4

// Zero-masking forms with every lane kept: the plain ones of GCC 12 warn of an uninitialised
// operand, and compile to the same instruction.
constexpr __mmask16 kAll16 = 0xFFFF;
constexpr __mmask8 kAll8 = 0xFF;

ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return static_cast<FloatVec>(_mm512_fmadd_ps(a, b, c));
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return static_cast<DoubleVec>(_mm512_fmadd_pd(a, b, c));
}
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) {
  return _mm512_maskz_max_ps(kAll16, a, b);
}
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return _mm512_maskz_max_pd(kAll8, a, b);
}
// Without optimisation GCC's roundscale is a macro, whose conversions then count as ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) {
  return _mm512_maskz_roundscale_ps(kAll16, x, 8);
}
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) {
  return _mm512_maskz_roundscale_pd(kAll8, x, 8);
}
#pragma GCC diagnostic pop
/// x * 2^n for a whole number n.
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  return _mm512_maskz_scalef_ps(kAll16, x, n);
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  return _mm512_maskz_scalef_pd(kAll8, x, n);
}

#elif ATTN_SIMD_X86 == 3

// Builtins, not intrinsics: the headers' intrinsics carry the target of the command line, and one
// compiled with -mavx512f cannot be inlined here.
typedef std::int32_t Int32Vec16 __attribute__((vector_size(16)));

ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return __builtin_ia32_vfmaddps256(a, b, c);
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return __builtin_ia32_vfmaddpd256(a, b, c);
}
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) { return __builtin_ia32_maxps256(a, b); }
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return __builtin_ia32_maxpd256(a, b);
}
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) { return __builtin_ia32_roundps256(x, 8); }
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) { return __builtin_ia32_roundpd256(x, 8); }
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  const auto whole = reinterpret_cast<Int32Vec>(__builtin_ia32_cvtps2dq256(n));
  return as_float(as_bits(x) + (whole << 23));
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  const auto whole = reinterpret_cast<Int32Vec16>(__builtin_ia32_cvtpd2dq256(n));
  return as_float(as_bits(x) + (__builtin_convertvector(whole, Int64Vec) << 52));
}

#elif ATTN_SIMD_X86 == 2

// No multiply-add instruction: two roundings.
ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) { return a * b + c; }
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) { return a * b + c; }
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) { return __builtin_ia32_maxps(a, b); }
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) { return __builtin_ia32_maxpd(a, b); }
ATTN_SIMD_INLINE Int32Vec to_whole(FloatVec x) {
  return reinterpret_cast<Int32Vec>(__builtin_ia32_cvtps2dq(x));
}
/// In the first two lanes.
ATTN_SIMD_INLINE Int32Vec to_whole(DoubleVec x) {
  return reinterpret_cast<Int32Vec>(__builtin_ia32_cvtpd2dq(x));
}
// Arguments are below 2^31 in magnitude (see exp_below) or NaN, which gives a finite number here
// and NaN again where it is subtracted from the argument.
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) {
  return __builtin_convertvector(to_whole(x), FloatVec);
}
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) {
  const Int32Vec whole = to_whole(x);
  return DoubleVec{static_cast<double>(whole[0]), static_cast<double>(whole[1])};
}
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  return as_float(as_bits(x) + (to_whole(n) << 23));
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  const Int32Vec whole = to_whole(n);
  return as_float(as_bits(x) + (Int64Vec{whole[0], whole[1]} << 52));
}

#else

ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  FloatVec r;
  for (int i = 0; i < Simd<float>::kLanes; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  DoubleVec r;
  for (int i = 0; i < Simd<double>::kLanes; ++i) r[i] = __builtin_fma(a[i], b[i], c[i]);
  return r;
}
template <class Vec>
ATTN_SIMD_INLINE Vec maximum(Vec a, Vec b) {
  return select(less(b, a), a, b);
}
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) {
  for (int i = 0; i < Simd<float>::kLanes; ++i) x[i] = __builtin_rintf(x[i]);
  return x;
}
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) {
  for (int i = 0; i < Simd<double>::kLanes; ++i) x[i] = __builtin_rint(x[i]);
  return x;
}
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  return as_float(as_bits(x) + (__builtin_convertvector(n, Int32Vec) << 23));
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  return as_float(as_bits(x) + (__builtin_convertvector(n, Int64Vec) << 52));
}

#endif

/// The sum of all lanes, folded in halves: lane i with lane i + n/2, and so on.
#if defined(__clang__) || __GNUC__ >= 12
typedef float FloatVec16 __attribute__((vector_size(16)));
typedef double DoubleVec16 __attribute__((vector_size(16)));
ATTN_SIMD_INLINE float sum_quarter(FloatVec16 x) {
  x = x + __builtin_shufflevector(x, x, 2, 3, 2, 3);
  return x[0] + x[1];
}
ATTN_SIMD_INLINE double sum_quarter(DoubleVec16 x) { return x[0] + x[1]; }
template <class A>
ATTN_SIMD_INLINE A sum_lanes(typename Simd<A>::Vec x) {
#if ATTN_SIMD_BYTES == 64
  if constexpr (sizeof(A) == 4) {
    const auto half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return sum_quarter(__builtin_shufflevector(half, half, 0, 1, 2, 3) +
                       __builtin_shufflevector(half, half, 4, 5, 6, 7));
  } else {
    const auto half =
        __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
    return sum_quarter(__builtin_shufflevector(half, half, 0, 1) +
                       __builtin_shufflevector(half, half, 2, 3));
  }
#elif ATTN_SIMD_BYTES == 32
  if constexpr (sizeof(A) == 4) {
    return sum_quarter(__builtin_shufflevector(x, x, 0, 1, 2, 3) +
                       __builtin_shufflevector(x, x, 4, 5, 6, 7));
  } else {
    return sum_quarter(__builtin_shufflevector(x, x, 0, 1) + __builtin_shufflevector(x, x, 2, 3));
  }
#else
  return sum_quarter(x);
#endif
}
#else
template <class A>
ATTN_SIMD_INLINE A sum_lanes(typename Simd<A>::Vec x) {
  A part[Simd<A>::kLanes];
  store(part, x);
  for (Index half = Simd<A>::kLanes / 2; half > 0; half /= 2) {
    for (Index i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}
#endif
template <class A>
ATTN_SIMD_INLINE A max_lanes(typename Simd<A>::Vec x) {
  A top = x[0];
  for (Index i = 1; i < Simd<A>::kLanes; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

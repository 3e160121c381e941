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

/// Whether any bit is set.
template <class IntVec>
ATTN_SIMD_INLINE bool has_bits(IntVec x) {
  std::uint64_t words[sizeof x / 8], all = 0;
  __builtin_memcpy(words, &x, sizeof x);
  ATTN_SIMD_UNROLL
  for (unsigned i = 0; i < sizeof x / 8; ++i) all |= words[i];
  return all != 0;
}

// What -ffast-math permits is kept away: dividing by a reciprocal, or by an estimate of one (whose
// instructions both compilers take for vectors), forgetting the sign of zero, summing in another
// order. The compiler knows nothing of what went through an instruction in assembler text, and of
// what went through none.
#if ATTN_IS_FAST_MATH && ATTN_X86_TABLES
template <class Vec>
ATTN_SIMD_INLINE Vec as_written(Vec x) {
  __asm__("" : "+v"(x));
  return x;
}
#if ATTN_SIMD_X86 == 2
ATTN_SIMD_INLINE FloatVec divide(FloatVec a, FloatVec b) {
  __asm__("{divps\t%1, %0|divps\t%0, %1}" : "+x"(a) : "x"(b));
  return a;
}
ATTN_SIMD_INLINE DoubleVec divide(DoubleVec a, DoubleVec b) {
  __asm__("{divpd\t%1, %0|divpd\t%0, %1}" : "+x"(a) : "x"(b));
  return a;
}
#else
ATTN_SIMD_INLINE FloatVec divide(FloatVec a, FloatVec b) {
  __asm__("{vdivps\t%1, %0, %0|vdivps\t%0, %0, %1}" : "+v"(a) : "v"(b));
  return a;
}
ATTN_SIMD_INLINE DoubleVec divide(DoubleVec a, DoubleVec b) {
  __asm__("{vdivpd\t%1, %0, %0|vdivpd\t%0, %0, %1}" : "+v"(a) : "v"(b));
  return a;
}
#endif
#elif ATTN_IS_FAST_MATH && defined(__aarch64__)
template <class Vec>
ATTN_SIMD_INLINE Vec as_written(Vec x) {
  __asm__("" : "+w"(x));
  return x;
}
ATTN_SIMD_INLINE FloatVec divide(FloatVec a, FloatVec b) {
  __asm__("fdiv\t%0.4s, %0.4s, %1.4s" : "+w"(a) : "w"(b));
  return a;
}
ATTN_SIMD_INLINE DoubleVec divide(DoubleVec a, DoubleVec b) {
  __asm__("fdiv\t%0.2d, %0.2d, %1.2d" : "+w"(a) : "w"(b));
  return a;
}
#else
template <class Vec>
ATTN_SIMD_INLINE Vec as_written(Vec x) {
  return x;
}
template <class Vec>
ATTN_SIMD_INLINE Vec divide(Vec a, Vec b) {
  return a / b;
}
#endif

template <class A>
ATTN_SIMD_INLINE void store_first(A* p, typename Simd<A>::Vec x, Index count) {
  for (Index i = 0; i < count; ++i) p[i] = x[i];
}

#if ATTN_SIMD_X86 == 4

// Builtins, not intrinsics, here and for AVX2: intrinsics carry the target of the command line, and
// one compiled with more than a region has cannot be inlined there. Their header also takes as long
// to read as half of Eigen/Core.
constexpr unsigned short kAll16 = 0xFFFF;  // every lane
constexpr unsigned char kAll8 = 0xFF;
constexpr int kCurrentRounding = 4;

// Some of GCC's take the mask as a signed number.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, kAll16, kCurrentRounding);
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, kAll8, kCurrentRounding);
}
#if defined(__clang__)
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) {
  return __builtin_ia32_maxps512(a, b, kCurrentRounding);
}
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return __builtin_ia32_maxpd512(a, b, kCurrentRounding);
}
#else
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) {
  return __builtin_ia32_maxps512_mask(a, b, FloatVec{}, kAll16, kCurrentRounding);
}
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return __builtin_ia32_maxpd512_mask(a, b, DoubleVec{}, kAll8, kCurrentRounding);
}
#endif
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) {
  return __builtin_ia32_rndscaleps_mask(x, 8, FloatVec{}, kAll16, kCurrentRounding);
}
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) {
  return __builtin_ia32_rndscalepd_mask(x, 8, DoubleVec{}, kAll8, kCurrentRounding);
}
/// x * 2^n for a whole number n.
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  return __builtin_ia32_scalefps512_mask(x, n, FloatVec{}, kAll16, kCurrentRounding);
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  return __builtin_ia32_scalefpd512_mask(x, n, DoubleVec{}, kAll8, kCurrentRounding);
}
/// The elements at p whose bit of the mask is set, the other lanes 0. Reads nothing else.
ATTN_SIMD_INLINE FloatVec load_masked(const float* p, unsigned mask) {
  return __builtin_ia32_loadups512_mask(p, FloatVec{}, static_cast<unsigned short>(mask));
}
ATTN_SIMD_INLINE DoubleVec load_masked(const double* p, unsigned mask) {
  return __builtin_ia32_loadupd512_mask(p, DoubleVec{}, static_cast<unsigned char>(mask));
}
typedef short Int16Vec16 __attribute__((vector_size(32)));
ATTN_SIMD_INLINE FloatVec half_to_float(Int16Vec16 x) {
  return __builtin_ia32_vcvtph2ps512_mask(x, FloatVec{}, kAll16, kCurrentRounding);
}
#pragma GCC diagnostic pop

#elif ATTN_SIMD_X86 == 3

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
ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return as_written(a * b) + c;
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return as_written(a * b) + c;
}
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

#elif defined(__aarch64__)

ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return static_cast<FloatVec>(vfmaq_f32(c, a, b));
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return static_cast<DoubleVec>(vfmaq_f64(c, a, b));
}
// NaN if either is, where x86's instruction returns the second operand: a row with a NaN score is
// NaN either way.
ATTN_SIMD_INLINE FloatVec maximum(FloatVec a, FloatVec b) {
  return static_cast<FloatVec>(vmaxq_f32(a, b));
}
ATTN_SIMD_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return static_cast<DoubleVec>(vmaxq_f64(a, b));
}
ATTN_SIMD_INLINE FloatVec round_to_nearest(FloatVec x) {
  return static_cast<FloatVec>(vrndnq_f32(x));
}
ATTN_SIMD_INLINE DoubleVec round_to_nearest(DoubleVec x) {
  return static_cast<DoubleVec>(vrndnq_f64(x));
}
ATTN_SIMD_INLINE FloatVec scale_by_power(FloatVec x, FloatVec n) {
  return as_float(as_bits(x) + (__builtin_convertvector(n, Int32Vec) << 23));
}
ATTN_SIMD_INLINE DoubleVec scale_by_power(DoubleVec x, DoubleVec n) {
  return as_float(as_bits(x) + (__builtin_convertvector(n, Int64Vec) << 52));
}

#else

ATTN_SIMD_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  for (int i = 0; i < Simd<float>::kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
ATTN_SIMD_INLINE DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  for (int i = 0; i < Simd<double>::kLanes; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
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

/// The first `count` < kLanes elements at p, the other lanes 0. Reads nothing behind them.
template <class A>
ATTN_SIMD_INLINE typename Simd<A>::Vec load_first(const A* p, Index count) {
#if ATTN_SIMD_X86 == 4
  return load_masked(p, (1u << count) - 1);
#else
  typename Simd<A>::Vec x = {};
  for (Index i = 0; i < count; ++i) x[i] = p[i];
  return x;
#endif
}

/// Brings memory to the second-level cache, one cache line at a time.
ATTN_SIMD_INLINE void prefetch_bytes(std::uintptr_t first, Index bytes) {
  for (Index i = 0; i < bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + static_cast<std::uintptr_t>(i)), 0, 2);
  }
}
ATTN_SIMD_INLINE void prefetch_row(const Prefetch& ahead, Index j) {
  if (ahead.bytes == 0) return;
  prefetch_bytes(
      reinterpret_cast<std::uintptr_t>(ahead.rows[j]) + static_cast<std::uintptr_t>(ahead.offset),
      ahead.bytes);
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

// attn/detail/kernels.inl - the micro-kernels, written once over vectors of ATTN_SIMD_BYTES bytes.
//
// micro_kernels.hpp includes this file once per instruction set, inside a region that enables that
// set, with
//   ATTN_SIMD_NAMESPACE   the namespace of this copy
//   ATTN_SIMD_BYTES       16, 32 or 64
//   ATTN_SIMD_X86         0 (vector extensions alone), 2 (SSE2), 3 (AVX2 + FMA), 4 (AVX-512)
// It includes nothing: what is defined outside the region would be compiled without its
// instructions. Multiply-add is an explicit instruction (never left to contraction), and rounding
// is a conversion (never the addition of a magic number), so that -ffp-contract and -ffast-math
// change no bit of what is computed here.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

// ---- Vectors ------------------------------------------------------------------------------------

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

// ---- Arithmetic that has an instruction of its own ----------------------------------------------

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

// ---- exp and tanh -------------------------------------------------------------------------------

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

/// e^x for x of at most about 88, exactly 0 below kLowest (-infinity too), NaN for NaN.
/// Relative error: (2 + |x| / 2) epsilon.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec exp_below(Vec x) {
  using C = ExpConstants<A>;
  const Vec lowest = broadcast(C::kLowest);
  const auto is_zero = less(x, lowest);
  x = maximum(lowest, x);  // NaN stays: the second operand wins
  const Vec t = x * broadcast(C::kLog2E);
  const Vec n = round_to_nearest(t);
  const Vec r = multiply_add(x, broadcast(C::kLog2E), -n);
  constexpr int kDegree = sizeof(C::kCoefficients) / sizeof(A);
  Vec p = broadcast(C::kCoefficients[kDegree - 1]);
  ATTN_SIMD_UNROLL
  for (int i = kDegree - 2; i >= 0; --i) p = multiply_add(p, r, broadcast(C::kCoefficients[i]));
  p = multiply_add(p, r, broadcast(A(1)));
  p = scale_by_power(p, n);
  return as_float(as_bits(p) & ~is_zero);
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
  return multiply_add(p / q * z, x, x);
}

/// tanh(x), relative error below 4 epsilon; 1 and -1 at the infinities, NaN for NaN.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec tanh_of(Vec x) {
  const Vec one = broadcast(A(1));
  const auto sign = as_bits(x) & as_bits(broadcast(A(-0.0)));
  const Vec magnitude = as_float(as_bits(x) ^ sign);
  const Vec e = exp_below<A>(broadcast(A(-2)) * magnitude);
  const Vec for_large = as_float(as_bits((one - e) / (one + e)) | sign);
  // Kept finite: the polynomial of an infinite argument would raise "invalid".
  const auto is_small = less(magnitude, broadcast(A(0.625)));
  const Vec for_small = tanh_small(as_float(as_bits(x) & is_small), A());
  return select(is_small, for_small, for_large);
}

// ---- Row lanes ----------------------------------------------------------------------------------

template <class A>
struct Registers {
#if ATTN_SIMD_X86 == 4
  static constexpr unsigned kLines = 8, kVectors = 3;  // 24 accumulators of 32 registers
  static constexpr Index kTileVectors = 3;
#elif ATTN_SIMD_X86 == 3
  static constexpr unsigned kLines = 4, kVectors = 3;  // 12 of 16
  static constexpr Index kTileVectors = 3;
#else
  static constexpr unsigned kLines = 3, kVectors = 4;  // 12 of 16
  static constexpr Index kTileVectors = 4;
#endif
};

template <class A, unsigned kKeys, unsigned kVectors>
ATTN_SIMD_INLINE void score_block(const A* const* keys, Index dim, const A* queries,
                                  Index query_stride, A scale, A* scores, Index stride) {
  using Vec = typename Simd<A>::Vec;
  constexpr Index kLanes = Simd<A>::kLanes;
  Vec sum[kKeys][kVectors] = {};
  const A* key[kKeys];
  ATTN_SIMD_UNROLL
  for (unsigned j = 0; j < kKeys; ++j) key[j] = keys[j];
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
ATTN_SIMD_INLINE void score_columns(const A* const* keys, Index num_keys, Index dim,
                                    const A* queries, Index query_stride, A scale, A* scores,
                                    Index stride) {
  constexpr unsigned kKeys = Registers<A>::kLines;
  Index j = 0;
  for (; j + kKeys <= num_keys; j += kKeys) {
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
void row_scores(const A* const* keys, Index num_keys, Index dim, const A* queries,
                Index query_stride, Index rows, A scale, A* scores, Index stride) {
#define ATTN_CALL(N) \
  score_columns<A, N>(keys, num_keys, dim, queries + r, query_stride, scale, scores + r, stride)
  ATTN_FOR_EACH_COLUMN_GROUP(ATTN_CALL)
#undef ATTN_CALL
}

/// How far a maximum may grow before sums and outputs are rescaled: e^kStale = 2^8.
template <class A>
constexpr A kStale = A(5.545177444479562);

/// The first half of a softmax step: given the tile's maximum, moves `max` where it has grown by
/// more than kStale, and returns the factor for what was summed before (exactly 1 elsewhere).
/// `shift` is what to subtract from the scores: max, or 0 where no key has been seen.
template <class A, class Vec = typename Simd<A>::Vec>
ATTN_SIMD_INLINE Vec advance_max(Vec top, Vec& max, Vec& shift) {
  using S = Simd<A>;
  const auto grew = less(max + broadcast(kStale<A>), top);
  // Lanes that do not move compute 0 - 0, not -infinity - -infinity, which would be invalid.
  const Vec from = as_float(as_bits(max) & grew);
  const Vec to = as_float(as_bits(top) & grew);
  const Vec correction = exp_below<A>(from - to);
  max = select(grew, top, max);
  const auto is_empty = equal(as_bits(max), S::kMinusInfinity - typename S::IntVec{});
  shift = as_float(as_bits(max) & ~is_empty);
  return correction;
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
  bool any = false;
  ATTN_SIMD_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    Vec highest = load(max + v * kLanes);
    const Vec factor = advance_max<A>(top[v], highest, shift[v]);
    store(max + v * kLanes, highest);
    store(correction + v * kLanes, factor);
    const auto same = equal(as_bits(factor), as_bits(broadcast(A(1))));
    for (Index i = 0; i < kLanes; ++i) any |= same[i] == 0;
  }
  for (Index j = 0; j < num_keys; ++j) {
    ATTN_SIMD_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      A* const at = scores + j * stride + v * kLanes;
      const Vec weight = exp_below<A>(load(at) - shift[v]);
      store(at, weight);
      total[v] = total[v] + weight;
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
  bool any = false;
#define ATTN_CALL(N) \
  any = softmax_columns<A, N>(scores + r, num_keys, stride, max + r, sum + r, correction + r) || any
  ATTN_FOR_EACH_COLUMN_GROUP(ATTN_CALL)
#undef ATTN_CALL
  return any;
}

template <class A, unsigned kDims, unsigned kVectors>
ATTN_SIMD_INLINE void accumulate_block(const A* const* values, Index num_keys, Index first_dim,
                                       const A* weights, Index weight_stride, const A* correction,
                                       A* out, Index out_stride) {
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
    const A* const value = values[j] + first_dim;
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

template <class A, unsigned kVectors>
ATTN_SIMD_INLINE void accumulate_columns(const A* const* values, Index num_keys, Index dim,
                                         const A* weights, Index weight_stride, const A* correction,
                                         A* out, Index out_stride) {
  constexpr unsigned kDims = Registers<A>::kLines;
  Index d = 0;
  for (; d + kDims <= dim; d += kDims) {
    accumulate_block<A, kDims, kVectors>(values, num_keys, d, weights, weight_stride, correction,
                                         out + d * out_stride, out_stride);
  }
  for (; d < dim; ++d) {
    accumulate_block<A, 1, kVectors>(values, num_keys, d, weights, weight_stride, correction,
                                     out + d * out_stride, out_stride);
  }
}

template <class A>
void row_accumulate(const A* const* values, Index num_keys, Index dim, const A* weights,
                    Index weight_stride, Index rows, const A* correction, A* out,
                    Index out_stride) {
#define ATTN_CALL(N)                                                          \
  accumulate_columns<A, N>(values, num_keys, dim, weights + r, weight_stride, \
                           correction == nullptr ? nullptr : correction + r, out + r, out_stride)
  ATTN_FOR_EACH_COLUMN_GROUP(ATTN_CALL)
#undef ATTN_CALL
}
#undef ATTN_FOR_EACH_COLUMN_GROUP

template <class A>
void row_divide(A* out, Index dim, Index rows, Index stride, const A* divisor) {
  for (Index d = 0; d < dim; ++d) {
    for (Index r = 0; r < rows; r += Simd<A>::kLanes) {
      A* const at = out + d * stride + r;
      store(at, load(at) / load(divisor + r));
    }
  }
}

// ---- Dim lanes ----------------------------------------------------------------------------------

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
  const std::uintptr_t first = ahead.first + static_cast<std::uintptr_t>(j) * ahead.stride;
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

// ---- Both forms ---------------------------------------------------------------------------------

template <class A>
void softcap(A* x, Index lines, Index count, Index stride, A cap) {
  const auto factor = broadcast(cap);
  for (Index line = 0; line < lines; ++line) {
    for (Index i = 0; i < count; i += Simd<A>::kLanes) {
      A* const at = x + line * stride + i;
      store(at, tanh_of<A>(load(at) / factor) * factor);
    }
  }
}

// Blocks of 16-byte vectors, in every copy: shuffles across wider vectors cost more than they save.
typedef float Float4 __attribute__((vector_size(16)));
typedef float Float4At __attribute__((vector_size(16), aligned(4), may_alias));
typedef double Double2 __attribute__((vector_size(16)));
typedef double Double2At __attribute__((vector_size(16), aligned(8), may_alias));
#if defined(__clang__)
#define ATTN_SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#define ATTN_SHUFFLE2(a, b, i, j) __builtin_shufflevector(a, b, i, j)
#else
#define ATTN_SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, Int32x4{i, j, k, l})
#define ATTN_SHUFFLE2(a, b, i, j) __builtin_shuffle(a, b, Int64x2{i, j})
typedef std::int32_t Int32x4 __attribute__((vector_size(16)));
typedef std::int64_t Int64x2 __attribute__((vector_size(16)));
#endif

ATTN_SIMD_INLINE void transpose_block(const float* from, Index from_stride, float* to,
                                      Index to_stride) {
  const Float4 a = *reinterpret_cast<const Float4At*>(from);
  const Float4 b = *reinterpret_cast<const Float4At*>(from + from_stride);
  const Float4 c = *reinterpret_cast<const Float4At*>(from + 2 * from_stride);
  const Float4 d = *reinterpret_cast<const Float4At*>(from + 3 * from_stride);
  const Float4 ab_low = ATTN_SHUFFLE4(a, b, 0, 4, 1, 5), ab_high = ATTN_SHUFFLE4(a, b, 2, 6, 3, 7);
  const Float4 cd_low = ATTN_SHUFFLE4(c, d, 0, 4, 1, 5), cd_high = ATTN_SHUFFLE4(c, d, 2, 6, 3, 7);
  *reinterpret_cast<Float4At*>(to) = ATTN_SHUFFLE4(ab_low, cd_low, 0, 1, 4, 5);
  *reinterpret_cast<Float4At*>(to + to_stride) = ATTN_SHUFFLE4(ab_low, cd_low, 2, 3, 6, 7);
  *reinterpret_cast<Float4At*>(to + 2 * to_stride) = ATTN_SHUFFLE4(ab_high, cd_high, 0, 1, 4, 5);
  *reinterpret_cast<Float4At*>(to + 3 * to_stride) = ATTN_SHUFFLE4(ab_high, cd_high, 2, 3, 6, 7);
}
ATTN_SIMD_INLINE void transpose_block(const double* from, Index from_stride, double* to,
                                      Index to_stride) {
  const Double2 a = *reinterpret_cast<const Double2At*>(from);
  const Double2 b = *reinterpret_cast<const Double2At*>(from + from_stride);
  *reinterpret_cast<Double2At*>(to) = ATTN_SHUFFLE2(a, b, 0, 2);
  *reinterpret_cast<Double2At*>(to + to_stride) = ATTN_SHUFFLE2(a, b, 1, 3);
}
#undef ATTN_SHUFFLE4
#undef ATTN_SHUFFLE2

template <class A>
void transpose(const A* from, Index from_stride, Index rows, Index columns, A* to,
               Index to_stride) {
  constexpr Index kBlock = 16 / sizeof(A);
  for (Index r = 0; r < rows; r += kBlock) {
    Index c = 0;
    if (r + kBlock <= rows) {
      for (; c + kBlock <= columns; c += kBlock) {
        transpose_block(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
      }
    }
    for (; c < columns; ++c) {
      for (Index i = r; i < rows && i < r + kBlock; ++i) {
        to[c * to_stride + i] = from[i * from_stride + c];
      }
    }
  }
}

template <class A>
bool all_finite(const A* x, Index lines, Index count, Index stride) {
  using S = Simd<A>;
  const typename S::IntVec exponent = S::kExponentMask - typename S::IntVec{};
  typename S::IntVec found = {};
  for (Index line = 0; line < lines; ++line) {
    for (Index i = 0; i < count; i += S::kLanes) {
      found |= equal(as_bits(load(x + line * stride + i)) & exponent, exponent);
    }
  }
  for (Index i = 0; i < S::kLanes; ++i) {
    if (found[i] != 0) return false;
  }
  return true;
}

template <class A>
const KernelTable<A>& kernel_table() {
  static constexpr KernelTable<A> table = {
      Simd<A>::kLanes,   Simd<A>::kLanes * Registers<A>::kTileVectors,
      row_scores<A>,     row_softmax<A>,
      row_accumulate<A>, row_divide<A>,
      dim_scores<A>,     dim_softmax<A>,
      dim_accumulate<A>, softcap<A>,
      transpose<A>,      all_finite<A>};
  return table;
}

// ---- 16-bit storage -----------------------------------------------------------------------------

typedef std::uint16_t Uint16Half __attribute__((vector_size(ATTN_SIMD_BYTES / 2)));

/// kLanes 16-bit elements, each in the lower half of a 32-bit lane.
ATTN_SIMD_INLINE Int32Vec load_16_bits(const std::uint16_t* from) {
  Uint16Half packed;
  __builtin_memcpy(&packed, from, sizeof packed);
  return __builtin_convertvector(packed, Int32Vec);
}

ATTN_SIMD_INLINE FloatVec widen_half_lanes(const std::uint16_t* from) {
#if ATTN_SIMD_X86 == 4
  return _mm512_maskz_cvtph_ps(kAll16, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif ATTN_SIMD_X86 == 3
  typedef short Int16Vec8 __attribute__((vector_size(16)));
  Int16Vec8 packed;
  __builtin_memcpy(&packed, from, 16);
  return __builtin_ia32_vcvtph2ps256(packed);
#else
  // The exponent is moved to float's place and scaled up by 2^112, which also turns half's
  // subnormal numbers into normal ones; infinities and NaNs get float's exponent.
  const Int32Vec bits = load_16_bits(from);
  const Int32Vec magnitude = bits & 0x7FFF;
  const Int32Vec is_special = reinterpret_cast<Int32Vec>(magnitude >= 0x7C00);
  const Int32Vec scaled = as_bits(as_float(magnitude << 13) * broadcast(0x1p112f));
  return as_float(scaled | (is_special & 0x7F800000) | ((bits & 0x8000) << 16));
#endif
}

inline void widen_half(const std::uint16_t* from, float* to, Index count) {
  constexpr Index kLanes = Simd<float>::kLanes;
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, widen_half_lanes(from + i));
  if (i < count) {
    std::uint16_t rest[kLanes] = {};
    for (Index k = 0; i + k < count; ++k) rest[k] = from[i + k];
    store_first(to + i, widen_half_lanes(rest), count - i);
  }
}

inline void widen_bfloat16(const std::uint16_t* from, float* to, Index count) {
  constexpr Index kLanes = Simd<float>::kLanes;
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(to + i, as_float(load_16_bits(from + i) << 16));
  }
  for (; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    __builtin_memcpy(to + i, &bits, 4);
  }
}

inline const WidenTable& widen_table() {
  static constexpr WidenTable table = {widen_half, widen_bfloat16};
  return table;
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

// attn/detail/kernels/half_vectors.inl - 16-bit storage, loaded as vectors of float. A part of
// kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

typedef std::uint16_t Uint16Half __attribute__((vector_size(ATTN_SIMD_BYTES / 2)));

/// kLanes 16-bit elements, each in the lower half of a 32-bit lane.
ATTN_SIMD_INLINE Int32Vec load_16_bits(const void* from) {
  Uint16Half packed;
  __builtin_memcpy(&packed, from, sizeof packed);
#if defined(__aarch64__)
  // GCC 12 converts an 8-byte vector element by element.
  return reinterpret_cast<Int32Vec>(vmovl_u16(static_cast<uint16x4_t>(packed)));
#else
  return __builtin_convertvector(packed, Int32Vec);
#endif
}

ATTN_SIMD_INLINE FloatVec load(const Bfloat16Bits* p) { return as_float(load_16_bits(p) << 16); }

ATTN_SIMD_INLINE FloatVec load(const HalfBits* p) {
#if ATTN_SIMD_X86 == 4
  Int16Vec16 packed;
  __builtin_memcpy(&packed, p, 32);
  return half_to_float(packed);
#elif ATTN_SIMD_X86 == 3
  typedef short Int16Vec8 __attribute__((vector_size(16)));
  Int16Vec8 packed;
  __builtin_memcpy(&packed, p, 16);
  return __builtin_ia32_vcvtph2ps256(packed);
#elif defined(__aarch64__)
  Uint16Half packed;
  __builtin_memcpy(&packed, p, sizeof packed);
  return static_cast<FloatVec>(vcvt_f32_f16(vreinterpret_f16_u16(static_cast<uint16x4_t>(packed))));
#else
  // The exponent is moved to float's place and scaled up by 2^112, which also turns half's
  // subnormal numbers into normal ones; infinities and NaNs get float's exponent.
  const Int32Vec bits = load_16_bits(p);
  const Int32Vec magnitude = bits & 0x7FFF;
  const Int32Vec is_special = reinterpret_cast<Int32Vec>(magnitude >= 0x7C00);
  const Int32Vec scaled = as_bits(as_float(magnitude << 13) * broadcast(0x1p112f));
  return as_float(scaled | (is_special & 0x7F800000) | ((bits & 0x8000) << 16));
#endif
}

template <class Bits>
ATTN_SIMD_INLINE FloatVec load_first_16_bits(const Bits* p, Index count) {
  Bits rest[Simd<float>::kLanes] = {};
  for (Index i = 0; i < count; ++i) rest[i] = p[i];
  return load(rest);
}
ATTN_SIMD_INLINE FloatVec load_first(const Bfloat16Bits* p, Index count) {
  return load_first_16_bits(p, count);
}
ATTN_SIMD_INLINE FloatVec load_first(const HalfBits* p, Index count) {
  return load_first_16_bits(p, count);
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

// attn/detail/kernels/table.inl - what both forms share, 16-bit storage, and the tables. A part of
// kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

template <class A>
void softcap(A* x, Index lines, Index count, Index stride, A cap) {
  const auto factor = broadcast(cap);
  for (Index line = 0; line < lines; ++line) {
    for (Index i = 0; i < count; i += Simd<A>::kLanes) {
      A* const at = x + line * stride + i;
      store(at, tanh_of<A>(divide(load(at), factor)) * factor);
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
  return !has_bits(found);
}

template <class A, class Element>
inline constexpr FewRowKernels<A> kFewRows = {dim_scores<A, Element>, dim_accumulate<A, Element>};

template <class Bits>
void widen(const Bits* from, float* to, Index count) {
  constexpr Index kLanes = Simd<float>::kLanes;
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_first(to + i, load_first(from + i, count - i), count - i);
}

typedef std::uint32_t UInt32Vec __attribute__((vector_size(ATTN_SIMD_BYTES)));

/// A bfloat16 in the upper half of each lane; the lower half is undefined. NaN, where it may occur,
/// becomes the quiet NaN of its sign, as in Eigen's conversion.
template <bool kMayBeNaN>
ATTN_SIMD_INLINE UInt32Vec round_to_bfloat16(FloatVec x) {
  const UInt32Vec bits = reinterpret_cast<UInt32Vec>(x);
  const UInt32Vec rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  if constexpr (!kMayBeNaN) return rounded;
  const UInt32Vec is_nan = reinterpret_cast<UInt32Vec>((bits & 0x7FFFFFFFu) > 0x7F800000u);
  return (rounded & ~is_nan) | (((bits & 0x80000000u) | 0x7FC00000u) & is_nan);
}

template <bool kMayBeNaN>
ATTN_SIMD_INLINE FloatVec pair_lanes(FloatVec low, FloatVec high) {
  return reinterpret_cast<FloatVec>((round_to_bfloat16<kMayBeNaN>(low) >> 16) |
                                    (round_to_bfloat16<kMayBeNaN>(high) & 0xFFFF0000u));
}

template <bool kMayBeNaN>
void pair_bfloat16(const float* from, Index lines, Index count, Index from_stride, float* to,
                   Index to_stride) {
  constexpr Index kLanes = Simd<float>::kLanes;
  for (Index line = 0; line < lines; line += 2, from += 2 * from_stride, to += to_stride) {
    const bool has_both = line + 1 < lines;
    const float* const next = from + from_stride;
    Index i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const FloatVec high = has_both ? load(next + i) : FloatVec{};
      store(to + i, pair_lanes<kMayBeNaN>(load(from + i), high));
    }
    if (i < count) {
      const FloatVec high = has_both ? load_first(next + i, count - i) : FloatVec{};
      store_first(to + i, pair_lanes<kMayBeNaN>(load_first(from + i, count - i), high), count - i);
    }
  }
}

/// The tables of this copy.
struct Copy {
  template <class A>
  static const KernelTable<A>& kernels() {
    static constexpr KernelTable<A> table = {
        ATTN_SIMD_SET,  Simd<A>::kLanes, Simd<A>::kLanes * Registers<A>::kTileVectors,
        row_scores<A>,  row_softmax<A>,  row_accumulate<A>,
        row_divide<A>,  &kFewRows<A, A>, dim_softmax<A>,
        dim_weights<A>, dim_divide<A>,   softcap<A>,
        transpose<A>,   all_finite<A>};
    return table;
  }
  template <class Bits>
  static const FewRowKernels<float>& few_rows() {
    return kFewRows<float, Bits>;
  }
  template <class A>
  static const MaskKernels<A>& masks() {
    static constexpr MaskKernels<A> table = {keep_scores<A>, bias_scores<A>, slope_scores<A>};
    return table;
  }
  template <class = void>
  static const WidenTable& widening() {
    // The faster pairs are for matrix units, which only calls with AVX-512 use.
    static constexpr WidenTable table = {widen<HalfBits>, widen<Bfloat16Bits>, pair_bfloat16<true>,
                                         pair_bfloat16<ATTN_SIMD_X86 != 4>};
    return table;
  }
};

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

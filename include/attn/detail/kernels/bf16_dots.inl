// attn/detail/kernels/bf16_dots.inl - the matrix unit of CPUs whose vectors multiply pairs of
// bfloat16 (AVX512_BF16). A part of kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

/// sum[i] += left[i] . right[i], dot products of pairs: a multiply-add of the later elements, then
/// one of the earlier. Source: "Intel 64 and IA-32 Architectures Software Developer's Manual",
/// volume 2, VDPBF16PS. Assembler text, since the compilers disagree on the builtin: its name, and
/// the type of the pairs.
ATTN_SIMD_INLINE FloatVec add_dot_product(FloatVec sum, Int32Vec left, Int32Vec right) {
  __asm__("{vdpbf16ps\t%2, %1, %0|vdpbf16ps\t%0, %1, %2}" : "+v"(sum) : "v"(left), "v"(right));
  return sum;
}

// Pairs are moved as integers: as floats some are signalling NaNs.
typedef std::int32_t Int32At __attribute__((may_alias));
typedef std::int32_t Int32VecAt
    __attribute__((vector_size(ATTN_SIMD_BYTES), aligned(4), may_alias));
ATTN_SIMD_INLINE Int32Vec load_pairs(const float* p) {
  return *reinterpret_cast<const Int32VecAt*>(p);
}
ATTN_SIMD_INLINE Int32Vec broadcast_pair(const float* p) {
  return *reinterpret_cast<const Int32At*>(p) - Int32Vec{};
}

/// MatrixUnit::multiply: an element's products are summed in one chain of multiply-adds. 16
/// accumulators hide the latency of Zen 4; its row tile of 32 leaves no columns for more.
inline void multiply_bf16_dots(const float* left, Index left_stride, const float* right,
                               Index right_stride, Index lines, Index columns, Index depth,
                               bool is_first, float* out, Index out_stride) {
  constexpr Index kLanes = Simd<float>::kLanes;
  constexpr unsigned kLines = 8, kVectors = MatrixUnit::kColumns / kLanes;
  static_assert(MatrixUnit::kRows % kLines == 0);
  for (Index line = 0; line < lines; line += kLines) {
    for (Index column = 0; column < columns; column += MatrixUnit::kColumns) {
      const float* const first = left + line * left_stride;
      float* const block = out + line * out_stride + column;
      FloatVec sum[kLines][kVectors] = {};
      if (!is_first) {
        ATTN_SIMD_UNROLL
        for (unsigned i = 0; i < kLines; ++i) {
          ATTN_SIMD_UNROLL
          for (unsigned v = 0; v < kVectors; ++v) {
            sum[i][v] = load(block + i * out_stride + v * kLanes);
          }
        }
      }
      for (Index pair = 0; pair < depth / 2; ++pair) {
        Int32Vec of_columns[kVectors];
        ATTN_SIMD_UNROLL
        for (unsigned v = 0; v < kVectors; ++v) {
          of_columns[v] = load_pairs(right + pair * right_stride + column + v * kLanes);
        }
        ATTN_SIMD_UNROLL
        for (unsigned i = 0; i < kLines; ++i) {
          const Int32Vec of_line = broadcast_pair(first + i * left_stride + pair);
          ATTN_SIMD_UNROLL
          for (unsigned v = 0; v < kVectors; ++v) {
            sum[i][v] = add_dot_product(sum[i][v], of_line, of_columns[v]);
          }
        }
      }
      ATTN_SIMD_UNROLL
      for (unsigned i = 0; i < kLines; ++i) {
        ATTN_SIMD_UNROLL
        for (unsigned v = 0; v < kVectors; ++v) {
          store(block + i * out_stride + v * kLanes, sum[i][v]);
        }
      }
    }
  }
}

inline const MatrixUnit& bf16_dots() {
  static constexpr MatrixUnit unit = {"AVX512_BF16", [] {}, [] {}, multiply_bf16_dots};
  return unit;
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn

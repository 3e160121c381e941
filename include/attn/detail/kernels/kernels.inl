// attn/detail/kernels/kernels.inl - the micro-kernels, written once over vectors of ATTN_SIMD_BYTES
// bytes.
//
// micro_kernels.hpp includes this file once per instruction set, inside a region that enables that
// set, with
//   ATTN_SIMD_NAMESPACE   the namespace of this copy
//   ATTN_SIMD_BYTES       16, 32 or 64
//   ATTN_SIMD_SET         its InstructionSet
//   ATTN_SIMD_X86         0 (NEON, or vector extensions alone), 2 (SSE2), 3 (AVX2 + FMA), 4
//   (AVX-512)
// Nothing but the parts below is included: what is defined outside the region would be compiled
// without its instructions. Multiply-add is an explicit instruction (never left to contraction),
// and rounding is a conversion (never the addition of a magic number), so that -ffp-contract and
// -ffast-math change no bit of what is computed here.

// In this order: each part uses the ones before it.
// clang-format off
#include "attn/detail/kernels/vectors.inl"
#include "attn/detail/kernels/half_vectors.inl"
#include "attn/detail/kernels/across_lanes.inl"
#include "attn/detail/kernels/functions.inl"
#include "attn/detail/kernels/row_lanes.inl"
#include "attn/detail/kernels/dim_lanes.inl"
#include "attn/detail/kernels/transpose.inl"
#include "attn/detail/kernels/score_masks.inl"
#include "attn/detail/kernels/table.inl"
#if ATTN_SIMD_X86 == 4 && ATTN_HAS_BF16_DOTS
#include "attn/detail/kernels/bf16_dots.inl"
#endif
// clang-format on

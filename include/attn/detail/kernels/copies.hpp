// attn/detail/kernels/copies.hpp - level 3: the kernel tables of this build, and the choice among
// them.
//
// kernels.inl is compiled once per instruction set, each copy in its own namespace and inside a
// region that enables just that set, whatever -m flags the file is compiled with. Nothing of a copy
// is called except through its table.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/kernels/kernel_table.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/instruction_set.hpp"

#if !defined(__GNUC__) && !defined(__clang__)
#error "attn needs the vector extensions of GCC or Clang (clang-cl on Windows)"
#endif

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

// Under -ffast-math the copies are other functions, each compiler's its own: a file compiled so
// must not lend its kernels to the others through the linker. Nor must one that was not optimised,
// as slow as they are there, nor anyone to the compiled library.
#if ATTN_IS_FAST_MATH
#define ATTN_SIMD_MATH _fast_math
#define ATTN_SIMD_COMPILER ATTN_BUILD_SUMS
#else
#define ATTN_SIMD_MATH
#define ATTN_SIMD_COMPILER
#endif
#define ATTN_SIMD_JOIN_NAMES(a, b, c, d) a##b##c##d
#define ATTN_SIMD_JOIN(a, b, c, d) ATTN_SIMD_JOIN_NAMES(a, b, c, d)
#define ATTN_SIMD_COPY(name) \
  ATTN_SIMD_JOIN(name, ATTN_SIMD_MATH, ATTN_SIMD_COMPILER, ATTN_BUILD_EFFORT)

// Always inlined: a vector never crosses a call. `inline` alone would leave that to -O0's mercy.
#define ATTN_SIMD_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define ATTN_SIMD_UNROLL _Pragma("unroll")
#else
#define ATTN_SIMD_UNROLL _Pragma("GCC unroll 16")
#endif

#if ATTN_X86_TABLES

// Regions add to the command line, so each takes away what lies above it, BMI too: -march=native
// brings it, and no CPUID bit of the tables' promises it. They are tuned alike whatever -march
// says: tuned for Zen 3 (which -march=native may mean where AVX-512 exists), GCC 12 spills two of
// three vectors in the score kernel, which costs 15 %, and Clang 14 unrolls until the kernels take
// twice as long to compile, for no speed.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("no-sse3,no-bmi,no-bmi2,tune=x86-64"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("no-sse3,no-bmi,no-bmi2,tune=generic")
#endif
#define ATTN_SIMD_NAMESPACE ATTN_SIMD_COPY(kernels_sse2)
#define ATTN_SIMD_BYTES 16
#define ATTN_SIMD_X86 2
#define ATTN_SIMD_SET InstructionSet::sse2
#include "attn/detail/kernels/kernels.inl"
#undef ATTN_SIMD_NAMESPACE
#undef ATTN_SIMD_BYTES
#undef ATTN_SIMD_X86
#undef ATTN_SIMD_SET
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(                                                       \
    __attribute__((target("no-avx512f,no-bmi,no-bmi2,avx2,fma,f16c,tune=x86-64"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("no-avx512f,no-bmi,no-bmi2,avx2,fma,f16c,tune=generic")
#endif
#define ATTN_SIMD_NAMESPACE ATTN_SIMD_COPY(kernels_avx2)
#define ATTN_SIMD_BYTES 32
#define ATTN_SIMD_X86 3
#define ATTN_SIMD_SET InstructionSet::avx2
#include "attn/detail/kernels/kernels.inl"
#undef ATTN_SIMD_NAMESPACE
#undef ATTN_SIMD_BYTES
#undef ATTN_SIMD_X86
#undef ATTN_SIMD_SET
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(                                                                    \
    __attribute__((                                                                              \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,no-bmi,no-bmi2,tune=x86-64"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,no-bmi,no-bmi2,tune=generic")
#endif
#define ATTN_SIMD_NAMESPACE ATTN_SIMD_COPY(kernels_avx512)
#define ATTN_SIMD_BYTES 64
#define ATTN_SIMD_X86 4
#define ATTN_SIMD_SET InstructionSet::avx512
#include "attn/detail/kernels/kernels.inl"
#undef ATTN_SIMD_NAMESPACE
#undef ATTN_SIMD_BYTES
#undef ATTN_SIMD_X86
#undef ATTN_SIMD_SET
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

#define ATTN_SIMD_NAMESPACE ATTN_SIMD_COPY(kernels_generic)
#define ATTN_SIMD_BYTES 16
#define ATTN_SIMD_X86 0
#define ATTN_SIMD_SET InstructionSet::generic
#include "attn/detail/kernels/kernels.inl"
#undef ATTN_SIMD_NAMESPACE
#undef ATTN_SIMD_BYTES
#undef ATTN_SIMD_X86
#undef ATTN_SIMD_SET

#endif

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// f(copy) for the copy of the kernels whose instruction set is `set`, which is available.
template <class F>
const auto& with_copy(InstructionSet set, const F& f) {
#if ATTN_X86_TABLES
  if (set == InstructionSet::best) set = active_instruction_set();
  if (set == InstructionSet::avx512) return f(ATTN_SIMD_COPY(kernels_avx512)::Copy());
  if (set == InstructionSet::avx2) return f(ATTN_SIMD_COPY(kernels_avx2)::Copy());
  return f(ATTN_SIMD_COPY(kernels_sse2)::Copy());
#else
  (void)set;
  return f(ATTN_SIMD_COPY(kernels_generic)::Copy());
#endif
}

template <class A>
const KernelTable<A>& kernels(InstructionSet set) {
  return with_copy(
      set, [](auto copy) -> auto& { return copy.template kernels<A>(); });
}
template <class Bits>
const FewRowKernels<float>& few_row_kernels(InstructionSet set) {
  return with_copy(
      set, [](auto copy) -> auto& { return copy.template few_rows<Bits>(); });
}
template <class A>
const MaskKernels<A>& mask_kernels(InstructionSet set) {
  return with_copy(
      set, [](auto copy) -> auto& { return copy.template masks<A>(); });
}
template <class>
const WidenTable& widening(InstructionSet set) {
  return with_copy(
      set, [](auto copy) -> auto& { return copy.template widening<>(); });
}

template <class>
const MatrixUnit* bf16_dots_unit() {
#if ATTN_HAS_BF16_DOTS
  if (has_bf16_dots()) return &ATTN_SIMD_COPY(kernels_avx512)::bf16_dots();
#endif
  return nullptr;
}

template <class>
const MatrixUnit* find_matrix_unit(InstructionSet set) {
  if (set != InstructionSet::best && set != InstructionSet::avx512) return nullptr;
  if (const MatrixUnit* const amx = amx_unit<>()) return amx;
#if ATTN_X86_TABLES
  // AMD's dot products (Zen 4) multiply twice as many numbers a cycle as float multiply-adds do.
  // Intel's start half as often, which leaves no gain, and its newer CPUs have AMX beside them.
  if (is_amd_cpu()) return bf16_dots_unit<void>();
#endif
  return nullptr;
}

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

#undef ATTN_SIMD_INLINE
#undef ATTN_SIMD_UNROLL

// attn/detail/kernels/cpu_matrix.hpp - level 3: which of the instructions that multiply pairs of
// bfloat16 this CPU and operating system offer.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/instruction_set.hpp"

#if ATTN_X86_TABLES

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Asks the system for the use of AMX's tiles, whose state it saves for those alone that ask. Needs
/// a CPU with AVX-512.
inline bool request_amx() {
#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool bf16 = d >> 22 & 1, tile = d >> 24 & 1;
  if (!bf16 || !tile || (extended_control_register() >> 17 & 3) != 3) return false;
  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). By number: the call is newer (Linux 5.16)
  // than many systems' headers.
  long result = 158;
  __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return result == 0;
#else
  return false;
#endif
}

/// Whether AMX's bfloat16 tiles may be used. The first call asks, for the whole process.
inline bool may_use_amx() {
  static const bool is_granted =
      active_instruction_set() == InstructionSet::avx512 && request_amx();
  return is_granted;
}

/// Whether the CPU has AVX512_BF16, vectors that multiply pairs of bfloat16.
inline bool has_bf16_dots() {
  static const bool is_there = active_instruction_set() == InstructionSet::avx512 && [] {
    unsigned highest = 0, a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &highest, &b, &c, &d) && highest >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  }();
  return is_there;
}

inline bool is_amd_cpu() {
  static const bool is_amd = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541 && d == 0x69746E65 &&
           c == 0x444D4163;  // "AuthenticAMD"
  }();
  return is_amd;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

#endif

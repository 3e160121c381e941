// attn/instruction_set.hpp - level 2: which vector instructions this CPU and operating system
// offer.
//
//   std::cout << attn::active_instruction_set();  // avx512
#pragma once

#include <iosfwd>

#include "attn/config.hpp"

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define ATTN_X86_TABLES 1
#include <cpuid.h>
#else
#define ATTN_X86_TABLES 0
#endif

namespace attn {

/// The kernel tables. `best` is the highest that the CPU has. `generic` and `sse2` are the same
/// table on x86-64 (SSE2 is its baseline), `generic` and `neon` on 64-bit ARM.
enum class InstructionSet { best, generic, sse2, avx2, avx512, neon };

/// "avx2" and the like, the name of the enumerator; "unknown" for a number that is none.
ATTN_ALWAYS_INLINE constexpr const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::best:
      return "best";
    case InstructionSet::generic:
      return "generic";
    case InstructionSet::sse2:
      return "sse2";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
    case InstructionSet::neon:
      return "neon";
  }
  return "unknown";
}

/// Writes the name.
template <class Char, class Traits>
ATTN_ALWAYS_INLINE std::basic_ostream<Char, Traits>& operator<<(
    std::basic_ostream<Char, Traits>& stream, InstructionSet set) {
  return stream << name_of(set);
}

namespace detail {

inline namespace ATTN_BUILD {

#if ATTN_X86_TABLES

// What the operating system saves on a context switch. Not _xgetbv: that needs -mxsave.
inline unsigned long long extended_control_register() {
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<unsigned long long>(high) << 32 | low;
}

inline InstructionSet detect_instruction_set() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return InstructionSet::generic;
  const bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
  if (!osxsave || !avx || !fma || !f16c) return InstructionSet::sse2;
  const unsigned long long saved = extended_control_register();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return InstructionSet::sse2;
  const bool avx2 = b >> 5 & 1;
  if ((saved & 0x6) != 0x6 || !avx2) return InstructionSet::sse2;
  const bool avx512 =
      (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F DQ BW VL
  return (saved & 0xE6) == 0xE6 && avx512 ? InstructionSet::avx512 : InstructionSet::avx2;
}

/// Whether the CPU runs this table. The tables of x86-64 are ordered: each contains the lower ones.
inline bool is_available(InstructionSet set, InstructionSet best) {
  if (set == InstructionSet::neon) return false;
  // A number that names none may have been made one.
  return set >= InstructionSet::best && set <= best;
}

#else

inline InstructionSet detect_instruction_set() {
#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
  return InstructionSet::neon;
#else
  return InstructionSet::generic;
#endif
}

inline bool is_available(InstructionSet set, InstructionSet best) {
  return set == InstructionSet::best || set == InstructionSet::generic || set == best;
}

#endif

}  // namespace ATTN_BUILD
}  // namespace detail

inline namespace ATTN_BUILD {

/// The instruction set of the kernels that a call uses unless it asks for a lower one: the highest
/// that the CPU has and the operating system permits, never `best`. Asked for once a process; the
/// compiler's flags have no part in it.
inline InstructionSet active_instruction_set() {
  static const InstructionSet set = detail::detect_instruction_set();
  return set;
}

}  // namespace ATTN_BUILD

}  // namespace attn

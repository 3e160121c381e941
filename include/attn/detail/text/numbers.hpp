// attn/detail/text/numbers.hpp - level 3: numbers as text, whatever the locale.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdio>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// `value` as printf's `format` writes it, which takes a precision and the value. The locale may
/// change what stands between the whole number and its decimals, and nothing else. A NaN has no
/// sign, which says nothing and differs between CPUs.
ATTN_COLD inline std::string format_number(const char* format, int precision, double value) {
  char digits[400];  // the largest double has 309 before the point
  if (is_nan(value)) return "nan";
  const int size = std::snprintf(digits, sizeof digits, format, precision, value);
  std::string text;
  bool is_in_point = false;
  for (int i = 0; i < size && i < static_cast<int>(sizeof digits) - 1; ++i) {
    const char c = digits[i];
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '+' || c == '-';
    if (is_plain) text += c;
    if (!is_plain && !is_in_point) text += '.';  // of one byte or several
    is_in_point = !is_plain;
  }
  return text;
}
/// `value` with this many decimals.
inline std::string fixed(double value, int decimals) {
  return format_number("%.*f", decimals, value);
}
/// `value` with up to so many significant digits.
inline std::string general(double value, int digits = 6) {
  return format_number("%.*g", digits, value);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/text/text_parts.hpp - level 3: what an error text is put together from. The text is
// made in one place, so that a check compiles to little more than its test.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdio>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// A part of a text: words, a number, or a shape, "[2, 8, 128, 64]". It keeps no copy of words.
class TextPart {
 public:
  TextPart(const char* words) : kind_(Kind::words), words_(words) {}
  TextPart(const std::string& words) : TextPart(words.c_str()) {}
  TextPart(double number) : kind_(Kind::real), real_(number) {}
  TextPart(const Shape4& shape) : kind_(Kind::shape), shape_(&shape) {}
  template <class Number, class = std::enable_if_t<std::is_integral_v<Number>>>
  TextPart(Number number)
      : kind_(std::is_signed_v<Number> ? Kind::whole : Kind::size),
        whole_(static_cast<long long>(number)) {}

  ATTN_COLD ATTN_NEVER_INLINE void append_to(std::string& text) const {
    char digits[4 * 24];  // of up to four numbers
    switch (kind_) {
      case Kind::words:
        text += words_;
        return;
      case Kind::real:
        text += general(real_);
        return;
      case Kind::whole:
        std::snprintf(digits, sizeof digits, "%lld", whole_);
        break;
      case Kind::size:
        std::snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(whole_));
        break;
      case Kind::shape: {
        const auto wide = [](Index extent) { return static_cast<long long>(extent); };
        std::snprintf(digits, sizeof digits, "[%lld, %lld, %lld, %lld]", wide(shape_->batch),
                      wide(shape_->heads), wide(shape_->length), wide(shape_->dim));
      }
    }
    text += digits;
  }

 private:
  enum class Kind : unsigned char { words, whole, size, real, shape };
  Kind kind_;
  union {
    const char* words_;
    long long whole_;
    double real_;
    const Shape4* shape_;
  };
};

/// The parts of a text, as {"q has ", count, " rows"}.
using TextParts = std::initializer_list<TextPart>;

ATTN_COLD ATTN_NEVER_INLINE inline void append(std::string& text, TextParts parts) {
  for (const TextPart& part : parts) part.append_to(text);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

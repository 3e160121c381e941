// attn/detail/text/text.hpp - level 3: numbers, tables and UTF-8 as text, whatever the locale.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <string>
#include <vector>

#include "attn/config.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The code points of UTF-8 text. What is not UTF-8 becomes U+FFFD, byte by byte.
inline std::vector<char32_t> code_points(const std::string& text) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::vector<char32_t> points;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned lead = byte(i);
    const std::size_t more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : 3;
    char32_t point = lead < 0x80 ? lead : lead & (0x3Fu >> more);
    bool valid = lead < 0x80 || (lead >= 0xC2 && lead <= 0xF4);
    for (std::size_t k = 1; k <= more; ++k) {
      valid = valid && byte(i + k) >> 6 == 2;
      point = point << 6 | (byte(i + k) & 0x3Fu);
    }
    // Longer than need be, a surrogate, or beyond the last code point.
    valid = valid && !(more == 2 && point < 0x800) && !(more == 3 && point < 0x10000) &&
            !(point >= 0xD800 && point < 0xE000) && point <= 0x10FFFF;
    points.push_back(valid ? point : kReplacement);
    i += valid ? more + 1 : 1;
  }
  return points;
}

/// Text between tags: without control characters, which XML forbids.
inline std::string escape_xml(const std::string& text) {
  std::string escaped;
  for (const char32_t c : code_points(text)) {
    const auto append = [&](char32_t byte) { escaped += static_cast<char>(byte); };
    if (c == U'&') {
      escaped += "&amp;";
    } else if (c == U'<') {
      escaped += "&lt;";
    } else if (c == U'>') {
      escaped += "&gt;";
    } else if (c < 0x20 || c == 0xFFFE || c == 0xFFFF) {
      escaped += ' ';
    } else if (c < 0x80) {
      append(c);
    } else if (c < 0x800) {
      append(0xC0 | c >> 6);
      append(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      append(0xE0 | c >> 12);
      append(0x80 | (c >> 6 & 0x3F));
      append(0x80 | (c & 0x3F));
    } else {
      append(0xF0 | c >> 18);
      append(0x80 | (c >> 12 & 0x3F));
      append(0x80 | (c >> 6 & 0x3F));
      append(0x80 | (c & 0x3F));
    }
  }
  return escaped;
}

/// How many columns the text takes: none for a combining accent, two for a wide East Asian
/// character or an emoji. Coarse, but enough to leave room for labels.
inline Index display_width(const std::string& text) {
  Index width = 0;
  for (const char32_t c : code_points(text)) {
    if (c >= 0x300 && c < 0x370) continue;
    const bool wide = (c >= 0x1100 && c < 0x1160) || (c >= 0x2E80 && c < 0xA4D0) ||
                      (c >= 0xAC00 && c < 0xD7A4) || (c >= 0xF900 && c < 0xFB00) ||
                      (c >= 0xFF00 && c < 0xFF61) || c >= 0x1F300;
    width += wide ? 2 : 1;
  }
  return width;
}

/// Rows of cells as aligned text: the first column to the left, the others to the right.
inline std::string text_table(const std::vector<std::vector<std::string>>& rows,
                              const std::string& indent) {
  std::vector<Index> widths;
  for (const auto& row : rows) {
    widths.resize((std::max)(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = (std::max)(widths[c], display_width(row[c]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = indent;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(static_cast<std::size_t>(widths[c] - display_width(row[c])), ' ');
      line += c == 0 ? row[c] + padding : "  " + padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

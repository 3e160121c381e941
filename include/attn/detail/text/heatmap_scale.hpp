// attn/detail/text/heatmap_scale.hpp - level 3: the colours and the axes of a heatmap.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/text/text.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// From pale sand to deep blue, ever darker: the order survives greyscale and colour blindness.
struct HeatmapColor {
  static constexpr int kLevels = 64;
  double red, green, blue;

  static HeatmapColor of_level(int level) {
    constexpr HeatmapColor kStops[] = {
        {255, 250, 230}, {199, 230, 200}, {120, 198, 198}, {52, 134, 186}, {24, 36, 92}};
    const double at = 4.0 * level / (kLevels - 1);
    const int stop = (std::min)(3, static_cast<int>(at));
    const double t = at - stop;
    const HeatmapColor &a = kStops[stop], &b = kStops[stop + 1];
    return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green),
            a.blue + t * (b.blue - a.blue)};
  }
  std::string hex() const {
    std::string text = "#";
    for (const double channel : {red, green, blue}) {
      const int value = static_cast<int>(channel + 0.5);
      text += "0123456789abcdef"[value / 16];
      text += "0123456789abcdef"[value % 16];
    }
    return text;
  }
};

/// Generous: fonts differ.
inline Index text_width(const std::string& text, Index font_size) {
  return (display_width(text) * font_size * 62 + 99) / 100;
}

/// The cells along one axis.
struct HeatmapAxis {
  struct Label {
    Index cell;
    std::string text;
  };
  static constexpr Index kFontSize = 13;
  static constexpr Index kMaxCells = 128;  ///< more are pooled
  static constexpr Index kMaxValues = 16;  ///< cells of more have no room for numbers

  Index cells = 0, pool = 1;  ///< each cell shows `pool` rows (or columns)
  Index cell = 1, gap = 0;    ///< its size, and how much of that is left free
  Index step = 1;             ///< one label every `step` rows (or columns)
  Index label_width = 0;
  std::vector<Label> labels;

  HeatmapAxis() = default;
  HeatmapAxis(Index count, const std::vector<std::string>& given) {
    pool = (std::max)(Index{1}, (count + kMaxCells - 1) / kMaxCells);
    cells = (count + pool - 1) / pool;
    cell = cells <= kMaxValues ? 50 : (std::max)(Index{5}, 800 / cells);
    gap = cell >= 12 ? 2 : 0;
    // Tokens are as dense as lines of text can be; numbers go by 1, 2, 5, 10, 20, ... and stand
    // upright on both axes.
    const Index pitch =
        given.empty() ? text_width(std::to_string(count), kFontSize) + 8 : kFontSize + 2;
    Index decade = 1, digit = 1;
    while (step * cell < pool * pitch) {
      digit = digit == 1 ? 2 : digit == 2 ? 5 : 1;
      if (digit == 1) decade *= 10;
      step = given.empty() ? digit * decade : step + pool;
    }
    for (Index i = 0; i < count; i += step) {
      labels.push_back(
          {i / pool, given.empty() ? std::to_string(i) : given[static_cast<std::size_t>(i)]});
      label_width = (std::max)(label_width, text_width(labels.back().text, kFontSize));
    }
  }
  Index extent() const { return cells * cell; }
  /// The middle of a cell.
  Index middle(Index i) const { return i * cell + (cell - gap) / 2; }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

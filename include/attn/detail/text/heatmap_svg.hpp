// attn/detail/text/heatmap_svg.hpp - level 3: a heatmap laid out and written as SVG.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/text/heatmap_scale.hpp"
#include "attn/detail/text/numbers.hpp"
#include "attn/detail/text/text.hpp"
#include "attn/error.hpp"
#include "attn/heatmap_options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Lays out and writes one heatmap. Lengths are in pixels.
class HeatmapSvg {
 public:
  /// `weights` is rows x columns, row by row.
  HeatmapSvg(std::vector<double> weights, Index rows, Index columns, const HeatmapOptions& options)
      : options_(options) {
    rows_ = Axis(rows, options.query_labels);
    columns_ = Axis(columns, options.key_labels);
    pool(weights, columns);
    top_ = options.title.empty() ? 16 : 44;
    if (rows_.pool > 1 || columns_.pool > 1) top_ += 18;
    const Index tilted = (columns_.label_width * 72 + 99) / 100;  // at 45 degrees
    column_labels_are_tilted_ =
        columns_.label_width > columns_.cell * columns_.step / columns_.pool - 6;
    top_ += 20 + (column_labels_are_tilted_ ? tilted + 10 : 18);
    left_ = 44 + rows_.label_width;
    // The first tilted label starts at its cell and leans to the right, over the last one's room.
    const Index overhang = column_labels_are_tilted_ ? tilted - columns_.cell / 2 : 0;
    right_ = (std::max)(Index{96}, overhang + 16);
  }

  std::string text() const {
    const Index width =
        (std::max)(left_ + columns_.extent() + right_, 40 + text_width(options_.title, 16));
    const Index height = top_ + (std::max)(rows_.extent(), kLegendHeight) + 20;
    std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"" +
                      number(width) + "\" height=\"" + number(height) + "\" viewBox=\"0 0 " +
                      number(width) + ' ' + number(height) +
                      "\" font-family=\"system-ui, 'Segoe UI', Roboto, Helvetica, Arial, "
                      "sans-serif\" font-size=\"" +
                      number(Axis::kFontSize) + "\" fill=\"#333\">\n<title>" +
                      escape_xml(options_.title.empty() ? "attention weights" : options_.title) +
                      "</title>\n" + definitions() +
                      "<rect width=\"100%\" height=\"100%\" rx=\"8\" "
                      "fill=\"#fff\"/>\n";
    svg += titles() + labels() + cells() + legend();
    return svg + "</svg>\n";
  }

 private:
  using Axis = HeatmapAxis;
  static constexpr Index kLegendHeight = 150;

  static std::string number(Index value) { return std::to_string(value); }

  /// Makes each cell the largest weight of its rows and columns: none disappears. NaN wins.
  void pool(const std::vector<double>& weights, Index columns) {
    const auto size = static_cast<std::size_t>(rows_.cells * columns_.cells);
    cells_.assign(size, 0);
    for (std::size_t at = 0; at < weights.size(); ++at) {
      const Index i = static_cast<Index>(at) / columns, j = static_cast<Index>(at) % columns;
      double& cell =
          cells_[static_cast<std::size_t>(i / rows_.pool * columns_.cells + j / columns_.pool)];
      if (is_nan(cell)) continue;
      if (is_nan(weights[at]) || weights[at] > cell) cell = weights[at];
    }
    max_ = options_.max_weight;
    if (max_ > 0) return;
    for (const double cell : cells_) {
      if (is_finite(cell) && cell > max_) max_ = cell;
    }
    if (!(max_ > 0)) max_ = 1;
  }
  double cell(Index i, Index j) const {
    return cells_[static_cast<std::size_t>(i * columns_.cells + j)];
  }
  int level(double weight) const {
    const double share = (std::max)(0.0, (std::min)(1.0, weight / max_));
    return static_cast<int>(share * (HeatmapColor::kLevels - 1) + 0.5);
  }

  static std::string text_at(Index x, Index y, const std::string& text, const std::string& style) {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + style + '>' +
           escape_xml(text) + "</text>\n";
  }
  static std::string rectangle(Index x, Index y, Index width, Index height,
                               const std::string& fill) {
    return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
           "\" height=\"" + number(height) + "\" fill=\"" + fill + "\"/>\n";
  }

  static std::string definitions() {
    std::string text =
        "<defs>\n<pattern id=\"absent\" width=\"6\" height=\"6\" "
        "patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" fill=\"#f6f6f6\"/>"
        "<path d=\"M-1 1l2-2M0 6l6-6M5 7l2-2\" stroke=\"#ddd\"/></pattern>\n"
        "<linearGradient id=\"scale\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">";
    for (int step = 0; step <= 8; ++step) {
      const int level = step * (HeatmapColor::kLevels - 1) / 8;
      text += "<stop offset=\"" + fixed(step / 8.0, 3) + "\" stop-color=\"" +
              HeatmapColor::of_level(level).hex() + "\"/>";
    }
    return text + "</linearGradient>\n</defs>\n";
  }

  std::string titles() const {
    std::string text;
    if (!options_.title.empty()) {
      text += text_at(20, 30, options_.title, "font-size=\"16\" font-weight=\"600\" fill=\"#111\"");
    }
    if (rows_.pool > 1 || columns_.pool > 1) {
      text += text_at(20, options_.title.empty() ? 26 : 50,
                      "each cell is the largest of " + number(rows_.pool) + " x " +
                          number(columns_.pool) + " weights",
                      "fill=\"#777\"");
    }
    const Index x = left_ + columns_.extent() / 2, y = top_ + rows_.extent() / 2;
    const Index above =
        top_ - (column_labels_are_tilted_ ? columns_.label_width * 72 / 100 + 16 : 26);
    text += text_at(
        column_labels_are_tilted_ ? left_ : x, above, options_.key_title,
        std::string(column_labels_are_tilted_ ? "" : "text-anchor=\"middle\" ") + "fill=\"#777\"");
    text += text_at(
        24, y, options_.query_title,
        "text-anchor=\"middle\" fill=\"#777\" transform=\"rotate(-90 24 " + number(y) + ")\"");
    return text;
  }

  std::string labels() const {
    std::string text;
    for (const Axis::Label& label : rows_.labels) {
      text += text_at(left_ - 8, top_ + rows_.middle(label.cell) + 4, label.text,
                      "text-anchor=\"end\"");
    }
    for (const Axis::Label& label : columns_.labels) {
      const Index x = left_ + columns_.middle(label.cell), y = top_ - 8;
      text += text_at(x, y, label.text,
                      column_labels_are_tilted_
                          ? "transform=\"rotate(-45 " + number(x) + ' ' + number(y) + ")\""
                          : "text-anchor=\"middle\"");
    }
    return text;
  }

  std::string cells() const {
    const Index width = columns_.cell - columns_.gap, height = rows_.cell - rows_.gap;
    std::string colors[HeatmapColor::kLevels], absent, not_a_number;
    for (Index i = 0; i < rows_.cells; ++i) {
      for (Index j = 0; j < columns_.cells; ++j) {
        const double weight = cell(i, j);
        std::string& path = is_nan(weight)         ? not_a_number
                            : bits_of(weight) == 0 ? absent
                                                   : colors[level(weight)];
        path += 'M' + number(left_ + j * columns_.cell) + ' ' + number(top_ + i * rows_.cell) +
                'h' + number(width) + 'v' + number(height) + 'h' + number(-width) + 'z';
      }
    }
    std::string text;
    const auto draw = [&](const std::string& path, const std::string& fill) {
      if (!path.empty()) text += "<path fill=\"" + fill + "\" d=\"" + path + "\"/>\n";
    };
    for (int l = 0; l < HeatmapColor::kLevels; ++l)
      draw(colors[l], HeatmapColor::of_level(l).hex());
    draw(absent, "url(#absent)");
    draw(not_a_number, "#d62839");
    if (rows_.cells <= Axis::kMaxValues && columns_.cells <= Axis::kMaxValues) text += values();
    return text;
  }

  std::string values() const {
    std::string text = "<g font-size=\"12\" text-anchor=\"middle\">\n";
    for (Index i = 0; i < rows_.cells; ++i) {
      for (Index j = 0; j < columns_.cells; ++j) {
        const double weight = cell(i, j);
        if (bits_of(weight) == 0) continue;
        // Above this level white on the colour has more contrast than black.
        const bool is_dark = is_nan(weight) || level(weight) > HeatmapColor::kLevels * 3 / 4;
        text += text_at(left_ + columns_.middle(j), top_ + rows_.middle(i) + 4,
                        is_nan(weight) ? "NaN" : fixed(weight, 3),
                        is_dark ? "fill=\"#fff\"" : "fill=\"#111\"");
      }
    }
    return text + "</g>\n";
  }

  std::string legend() const {
    constexpr Index kBar = 96;
    const Index x = left_ + columns_.extent() + 18;
    std::string text = rectangle(x, top_, 14, kBar, "url(#scale)");
    for (const int tick : {0, 1, 2}) {
      text += text_at(x + 20, top_ + 5 + kBar * (2 - tick) / 2, tick_text(max_ * tick / 2), "");
    }
    bool any_absent = false;
    for (const double cell : cells_) any_absent = any_absent || bits_of(cell) == 0;
    if (any_absent) {
      text += rectangle(x, top_ + kBar + 24, 14, 14, "url(#absent)") +
              text_at(x + 20, top_ + kBar + 35, "none", "");
    }
    return text;
  }
  static std::string tick_text(double value) { return general(value, 3); }

  const HeatmapOptions& options_;
  Axis rows_, columns_;
  std::vector<double> cells_;
  double max_ = 0;
  bool column_labels_are_tilted_ = false;
  Index top_ = 0, left_ = 0, right_ = 0;
};

inline void check_heatmap(Index rows, Index columns, const HeatmapOptions& options) {
  const auto expect_labels = [](const char* name, const std::vector<std::string>& labels,
                                Index count) {
    if (labels.empty() || static_cast<Index>(labels.size()) == count) return;
    raise_shape_error(std::string("heatmap_svg: ") + name + " must hold one label each of " +
                      std::to_string(count) + ", got " + std::to_string(labels.size()));
  };
  expect_labels("query_labels", options.query_labels, rows);
  expect_labels("key_labels", options.key_labels, columns);
  if (!is_finite(options.max_weight) || options.max_weight < 0) {
    raise_option_error("heatmap_svg: max_weight must be finite and 0 (the largest) or more, got " +
                       general(options.max_weight));
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

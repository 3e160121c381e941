#include "attn/heatmap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <string>
#include <vector>

#include "support/throws.hpp"

namespace attn {
namespace {

using test::message_of;

/// Whether `text` is one XML element: every tag closed in order, every attribute quoted, every
/// ampersand the begin of an entity that XML knows, no control characters.
::testing::AssertionResult is_well_formed(const std::string& text) {
  std::vector<std::string> open;
  const auto wrong = [&](const std::string& what, std::size_t at) {
    return ::testing::AssertionFailure() << what << " at: " << text.substr(at, 60);
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return wrong("control character", at);
    if (c == '>') return wrong("stray >", at);
    if (c == '&') {
      bool known = false;
      for (const char* entity : {"&amp;", "&lt;", "&gt;"}) {
        known = known || text.compare(at, std::string(entity).size(), entity) == 0;
      }
      if (!known) return wrong("stray &", at);
    }
    if (c != '<') {
      if (open.empty() && c != '\n') return wrong("text outside the root", at);
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return wrong("tag without an end", at);
    std::string tag = text.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return wrong("wrong end tag", at);
      open.pop_back();
    } else {
      const bool is_closed = tag.back() == '/';
      if (is_closed) tag.pop_back();
      if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return wrong("open quote", at);
      if (std::count(tag.begin(), tag.end(), '"') != 2 * std::count(tag.begin(), tag.end(), '=')) {
        return wrong("attribute without quotes", at);
      }
      if (!is_closed) open.push_back(tag.substr(0, tag.find_first_of(" \n")));
    }
    at = end;
  }
  if (!open.empty()) return ::testing::AssertionFailure() << open.back() << " is not closed";
  return ::testing::AssertionSuccess();
}

Index count(const std::string& text, const std::string& part) {
  Index found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}
/// How many cells are drawn in a colour.
Index cells_of(const std::string& svg, const std::string& fill) {
  const std::string begin = "<path fill=\"" + fill + "\" d=\"";
  const std::size_t at = svg.find(begin);
  if (at == std::string::npos) return 0;
  return count(svg.substr(at, svg.find("/>", at) - at), "M");
}
/// The cells of every colour.
Index colored_cells(const std::string& svg) {
  Index cells = 0;
  for (int level = 0; level < detail::HeatmapColor::kLevels; ++level) {
    cells += cells_of(svg, detail::HeatmapColor::of_level(level).hex());
  }
  return cells;
}
const std::string kDarkest = "#18245c";

TEST(Heatmap, ShowsTheSentence) {
  Eigen::MatrixXd weights(1, 6);
  weights << 0.191727, 0.124720, 0.273437, 0.099591, 0.201557, 0.108970;
  HeatmapOptions options;
  options.title = "The cat sat on the mat";
  options.query_labels = {"sat"};
  options.key_labels = {"The", "cat", "sat", "on", "the", "mat"};
  const std::string svg = heatmap_svg(weights, options);
  EXPECT_TRUE(is_well_formed(svg));
  for (const char* value : {"0.192", "0.125", "0.273", "0.100", "0.202", "0.109"}) {
    EXPECT_EQ(count(svg, std::string(">") + value + "</text>"), value[3] == '7' ? 2 : 1) << value;
  }
  EXPECT_EQ(count(svg, ">sat</text>"), 2);
  EXPECT_EQ(count(svg, ">mat</text>"), 1);
  EXPECT_EQ(count(svg, ">query</text>"), 1);
  EXPECT_EQ(count(svg, ">key</text>"), 1);
  EXPECT_EQ(count(svg, "The cat sat on the mat"), 2);  // <title>, and to be seen
  EXPECT_EQ(colored_cells(svg), 6);
  EXPECT_EQ(cells_of(svg, kDarkest), 1);
  EXPECT_EQ(count(svg, "rotate(-45"), 0);
}

TEST(Heatmap, HatchesWeightsOfZeroAndMarksNaN) {
  Eigen::Matrix3f weights;
  weights << 1, 0, 0, 0.5f, 0.5f, 0, std::numeric_limits<float>::quiet_NaN(), 0.25f, 0.75f;
  const std::string svg = heatmap_svg(weights);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(cells_of(svg, "url(#absent)"), 3);
  EXPECT_EQ(cells_of(svg, "#d62839"), 1);
  EXPECT_EQ(colored_cells(svg), 5);
  EXPECT_EQ(count(svg, ">NaN</text>"), 1);
  EXPECT_EQ(count(svg, ">0.000</text>"), 0);
  EXPECT_EQ(count(svg, ">none</text>"), 1);
  EXPECT_EQ(count(heatmap_svg(Eigen::MatrixXf::Ones(2, 2)), ">none</text>"), 0);
}

TEST(Heatmap, DarkestColorIsTheLargestWeightOrAsAsked) {
  Eigen::MatrixXf weights(1, 3);
  weights << 0.1f, 0.2f, 0.4f;
  HeatmapOptions options;
  EXPECT_EQ(cells_of(heatmap_svg(weights, options), kDarkest), 1);
  EXPECT_EQ(count(heatmap_svg(weights, options), ">0.4</text>"), 1);  // the legend's
  options.max_weight = 0.15;
  EXPECT_EQ(cells_of(heatmap_svg(weights, options), kDarkest), 2);
  options.max_weight = 1;
  EXPECT_EQ(cells_of(heatmap_svg(weights, options), kDarkest), 0);
  EXPECT_EQ(count(heatmap_svg(weights, options), ">1</text>"), 2);  // column 1 and the legend
}

TEST(Heatmap, ColorsGrowDarker) {
  double lighter = 256 * 3;
  for (int level = 0; level < detail::HeatmapColor::kLevels; ++level) {
    const auto color = detail::HeatmapColor::of_level(level);
    const double luminance = 0.2126 * color.red + 0.7152 * color.green + 0.0722 * color.blue;
    EXPECT_LT(luminance, lighter) << level;
    lighter = luminance;
    EXPECT_EQ(color.hex().size(), 7u);
  }
  EXPECT_EQ(detail::HeatmapColor::of_level(0).hex(), "#fffae6");
  EXPECT_EQ(detail::HeatmapColor::of_level(63).hex(), kDarkest);
}

TEST(Heatmap, LongSequencesThinOut) {
  // Up to 16 cells show their values, up to 128 are there at all.
  EXPECT_EQ(count(heatmap_svg(Eigen::MatrixXf::Ones(16, 16)), ">1.000</text>"), 256);
  EXPECT_EQ(count(heatmap_svg(Eigen::MatrixXf::Ones(16, 17)), ">1.000</text>"), 0);
  EXPECT_EQ(colored_cells(heatmap_svg(Eigen::MatrixXf::Ones(128, 3))), 128 * 3);

  Eigen::MatrixXf weights = Eigen::MatrixXf::Constant(300, 1000, 0.01f);
  weights(299, 999) = 0.5f;
  weights(4, 17) = 0.5f;
  const std::string svg = heatmap_svg(weights);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(colored_cells(svg), 100 * 125);
  EXPECT_EQ(cells_of(svg, kDarkest), 2);  // the largest of a cell is what it shows
  EXPECT_EQ(count(svg, ">each cell is the largest of 3 x 8 weights</text>"), 1);
  EXPECT_EQ(count(svg, ">280</text>"), 1);
  EXPECT_EQ(count(svg, ">900</text>"), 1);
  EXPECT_LT(count(svg, "<text"), 40);
  EXPECT_LT(svg.size(), 400000u);

  HeatmapOptions options;
  for (int i = 0; i < 1000; ++i) options.key_labels.push_back("token" + std::to_string(i));
  const std::string labelled = heatmap_svg(weights, options);
  EXPECT_TRUE(is_well_formed(labelled));
  EXPECT_EQ(count(labelled, ">token0</text>"), 1);
  EXPECT_EQ(count(labelled, ">token1</text>"), 0);
  EXPECT_GT(count(labelled, "rotate(-45"), 20);
  EXPECT_LT(count(labelled, "<text"), 100);
}

TEST(Heatmap, TakesAnyMatrix) {
  Eigen::Matrix<float, 2, 3> weights;
  weights << 0.5f, 0.25f, 0.25f, 0.125f, 0.125f, 0.75f;
  const std::string expected = heatmap_svg(weights);
  const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> doubles =
      weights.cast<double>();
  EXPECT_EQ(heatmap_svg(doubles), expected);
  EXPECT_EQ(heatmap_svg((2 * weights) / 2), expected);
  EXPECT_EQ(heatmap_svg(weights.array()), expected);
  EXPECT_EQ(heatmap_svg(weights.cast<Eigen::half>()), expected);
  Eigen::MatrixXf transposed = weights.transpose();
  EXPECT_EQ(heatmap_svg(transposed.transpose()), expected);
}

TEST(Heatmap, NoWeightsAndOddOnes) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{0, 0}, {0, 3}, {3, 0}}) {
    const std::string svg = heatmap_svg(Eigen::MatrixXf(rows, columns));
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_EQ(colored_cells(svg), 0);
  }
  Eigen::MatrixXf scores(1, 3);  // not weights at all
  scores << -std::numeric_limits<float>::infinity(), -1, std::numeric_limits<float>::infinity();
  const std::string svg = heatmap_svg(scores);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(cells_of(svg, kDarkest), 1);
}

TEST(Heatmap, EscapesLabels) {
  HeatmapOptions options;
  options.title = "a < b && c > \"d\"";
  options.query_labels = {"<s>", "\x01\n&amp;"};
  options.key_labels = {
      "Stra\xC3\x9F"
      "e",
      "\xE6\x97\xA5\xE6\x9C\xAC", "\xF0\x9F\x90\x88", "bad \xC3( \xFF \xED\xA0\x80"};
  const std::string svg = heatmap_svg(Eigen::MatrixXf::Ones(2, 4), options);
  EXPECT_TRUE(is_well_formed(svg));
  for (const char* text :
       {">a &lt; b &amp;&amp; c &gt; \"d\"</text>", ">&lt;s&gt;</text>", ">  &amp;amp;</text>",
        ">Stra\xC3\x9F"
        "e</text>",
        ">\xE6\x97\xA5\xE6\x9C\xAC</text>", ">\xF0\x9F\x90\x88</text>",
        ">bad \xEF\xBF\xBD( \xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD</text>"}) {
    EXPECT_EQ(count(svg, text), 1) << text;
  }
}

TEST(Heatmap, DoesNotFollowTheLocale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const Eigen::MatrixXf weights = Eigen::MatrixXf::Constant(2, 2000, 0.125f);
  const std::string expected = heatmap_svg(weights);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  const std::string svg = heatmap_svg(weights);
  std::locale::global(before);
  EXPECT_EQ(svg, expected);
}

TEST(Heatmap, RefusesLabelsThatDoNotFit) {
  HeatmapOptions options;
  options.query_labels = {"a", "b"};
  const Eigen::MatrixXf weights = Eigen::MatrixXf::Ones(2, 3);
  EXPECT_NO_THROW(heatmap_svg(weights, options));
  options.key_labels = {"a", "b"};
  EXPECT_EQ(message_of<ShapeError>([&] { heatmap_svg(weights, options); }),
            "heatmap_svg: key_labels must hold one label each of 3, got 2");
  options.key_labels.clear();
  options.query_labels.pop_back();
  EXPECT_EQ(message_of<ShapeError>([&] { heatmap_svg(weights, options); }),
            "heatmap_svg: query_labels must hold one label each of 2, got 1");
  options.query_labels.clear();
  options.max_weight = -1;
  EXPECT_EQ(message_of<OptionError>([&] { heatmap_svg(weights, options); }),
            "heatmap_svg: max_weight must be finite and 0 (the largest) or more, got -1");
  options.max_weight = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(heatmap_svg(weights, options), OptionError);
}

TEST(HeatmapText, CodePoints) {
  using detail::code_points;
  using Points = std::vector<char32_t>;
  EXPECT_EQ(code_points("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            (Points{U'a', 0xE9, 0x20AC, 0x1F600}));
  // Cut off; too long (C0 80, E0 80 80); beyond the last; a lone continuation.
  EXPECT_EQ(code_points("\xE2\x82"), (Points{0xFFFD, 0xFFFD}));
  EXPECT_EQ(code_points("\xC0\x80"), (Points{0xFFFD, 0xFFFD}));
  EXPECT_EQ(code_points("\xE0\x80\x80"), (Points{0xFFFD, 0xFFFD, 0xFFFD}));
  EXPECT_EQ(code_points("\xF4\x90\x80\x80"), Points(4, 0xFFFD));
  EXPECT_EQ(code_points("\xF4\x8F\xBF\xBF"), Points{0x10FFFF});
  EXPECT_EQ(code_points("\x80z"), (Points{0xFFFD, U'z'}));
}

TEST(HeatmapText, DisplayWidth) {
  EXPECT_EQ(detail::display_width(""), 0);
  EXPECT_EQ(detail::display_width("##ing"), 5);
  EXPECT_EQ(detail::display_width("e\xCC\x81"), 1);         // e and a combining accent
  EXPECT_EQ(detail::display_width("\xE6\x97\xA5x"), 3);     // a wide character
  EXPECT_EQ(detail::display_width("\xF0\x9F\x90\x88"), 2);  // a cat
}

}  // namespace
}  // namespace attn

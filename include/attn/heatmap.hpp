// attn/heatmap.hpp - level 4: attention weights as a picture, an SVG file with the tokens as
// labels.
#pragma once

#include <Eigen/Core>
#include <string>
#include <utility>
#include <vector>

#include "attn/config.hpp"
#include "attn/detail/text/heatmap_svg.hpp"
#include "attn/heatmap_options.hpp"

namespace attn {

inline namespace ATTN_BUILD {

/// A picture of attention weights, queries down and keys across, as the text of an SVG file:
///
///   std::ofstream("weights.svg") << heatmap_svg(weights.view().matrix(0, head), options);
///
///   weights   any Eigen matrix [Sq, Sk] of weights (0 or more)
///
/// Up to 16 x 16 cells show their number. Beyond 128 a cell is the largest of several weights, and
/// the picture says so; labels thin out as they get dense. A weight of exactly 0, as a masked key
/// has, is hatched; NaN is red. Throws: ShapeError, OptionError (labels or max_weight do not fit).
template <class Derived>
std::string heatmap_svg(const Eigen::DenseBase<Derived>& weights,
                        const HeatmapOptions& options = {}) {
  detail::check_heatmap(weights.rows(), weights.cols(), options);
  std::vector<double> values;
  for (Index i = 0; i < weights.rows(); ++i) {
    for (Index j = 0; j < weights.cols(); ++j) {
      values.push_back(static_cast<double>(weights.derived().coeff(i, j)));
    }
  }
  return detail::HeatmapSvg(std::move(values), weights.rows(), weights.cols(), options).text();
}

}  // namespace ATTN_BUILD
}  // namespace attn

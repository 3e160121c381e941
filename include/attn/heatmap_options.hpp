// attn/heatmap_options.hpp - level 2: how a heatmap is labelled.
#pragma once

#include <string>
#include <vector>

#include "attn/config.hpp"

namespace attn {

/// How a heatmap is labelled. All texts are UTF-8.
struct HeatmapOptions {
  std::string title;
  std::vector<std::string> query_labels;  ///< one a row, the tokens; empty: 0, 1, 2, ...
  std::vector<std::string> key_labels;    ///< one a column
  std::string query_title = "query", key_title = "key";  ///< of the axes
  double max_weight = 0;  ///< the weight of the darkest colour; 0: the largest weight there is
};

}  // namespace attn

// The main example: how much each word of a sentence attends to each other word, as numbers and as
// a picture (the_cat_sat_on_the_mat.svg).
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "attn/attn.hpp"

int main() {
  const std::vector<std::string> words = {"The", "cat", "sat", "on", "the", "mat"};
  // One row a word. "sat" asks with a query of its own, the other words with their key.
  const float queries[6][4] = {{0.9f, 0.1f, -0.2f, 0.4f}, {0.3f, 1.2f, 0.5f, -0.1f},
                               {1.2f, -0.5f, 0.8f, 0.3f}, {-0.2f, 0.5f, 0.1f, 0.3f},
                               {0.8f, 0.0f, 0.2f, -0.1f}, {0.1f, 0.4f, -0.3f, 0.6f}};
  const float keys[6][4] = {{0.9f, 0.1f, -0.2f, 0.4f}, {0.3f, 1.2f, 0.5f, -0.1f},
                            {0.6f, -0.3f, 0.7f, 0.9f}, {-0.2f, 0.5f, 0.1f, 0.3f},
                            {0.8f, 0.0f, 0.2f, -0.1f}, {0.1f, 0.4f, -0.3f, 0.6f}};
  const float values[6][4] = {{0.2f, 0.3f, -0.1f, 0.4f}, {0.5f, -0.2f, 0.8f, 0.1f},
                              {0.3f, 0.7f, 0.2f, -0.3f}, {-0.1f, 0.4f, 0.5f, 0.2f},
                              {0.4f, 0.1f, -0.2f, 0.3f}, {0.0f, 0.6f, 0.3f, 0.5f}};

  // Memory in the order batch, heads, length, dim: one batch, one head, six words, four numbers
  // each.
  const auto result = attn::scaled_dot_product_attention(
      attn::bhsd(&queries[0][0], 1, 1, 6, 4), attn::bhsd(&keys[0][0], 1, 1, 6, 4),
      attn::bhsd(&values[0][0], 1, 1, 6, 4), attn::no_mask(), {}, attn::Want::weights);
  const auto weights = result.weights.view().matrix(0, 0);  // an Eigen map, 6 x 6

  std::printf("How much each word attends to the others:\n\n      ");
  for (const std::string& word : words) std::printf("%7s", word.c_str());
  for (int i = 0; i < 6; ++i) {
    std::printf("\n%6s", words[static_cast<std::size_t>(i)].c_str());
    for (int j = 0; j < 6; ++j) std::printf("%7.3f", static_cast<double>(weights(i, j)));
  }
  std::printf("\n\nThe output of \"sat\", its mix of the values:\n\n      ");
  for (int d = 0; d < 4; ++d) std::printf("%10.6f", static_cast<double>(result.output(0, 0, 2, d)));

  attn::HeatmapOptions options;
  options.title = "The cat sat on the mat";
  options.query_labels = options.key_labels = words;
  const std::filesystem::path path = std::filesystem::absolute("the_cat_sat_on_the_mat.svg");
  std::ofstream picture(path);
  picture << attn::heatmap_svg(weights, options) << std::flush;
  std::printf("\n\n%s %s\n", picture ? "Wrote" : "Could not write", path.string().c_str());

  // The same by hand: six digits, so right to half a unit of the last.
  const double expected[6] = {0.191727, 0.124720, 0.273437, 0.099591, 0.201557, 0.108970};
  bool right = static_cast<bool>(picture);
  for (int j = 0; j < 6; ++j) {
    right = right && std::abs(static_cast<double>(weights(2, j)) - expected[j]) < 6e-7;
  }
  return right ? 0 : 1;
}

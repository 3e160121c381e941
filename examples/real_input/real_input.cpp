// The first self-attention layer of a real model (all-MiniLM-L6-v2) over real sentences of
// different lengths in one padded batch, against NumPy in float64. dump_minilm.py writes what this
// reads; a folder of its files may be given as an argument.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "support/npy.hpp"

namespace {

using attn::Index;

constexpr Index kModelDim = 384, kHeads = 12;
constexpr double kTolerance = 1e-5;
constexpr Index kSentence = 1, kHead = 1;  // "it" looks for what it stands for

/// The arrays of one folder.
class Dump {
 public:
  explicit Dump(std::string folder) : folder_(std::move(folder)) {}

  bool exists() const { return std::ifstream(folder_ + "/x.npy").good(); }
  attn::test::NpyArray array(const std::string& name) const {
    return attn::test::read_npy(folder_ + "/" + name + ".npy");
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    return array(name).values<T>();
  }
  std::vector<std::string> tokens() const {
    std::ifstream file(folder_ + "/tokens.txt");
    std::vector<std::string> tokens;
    for (std::string line; std::getline(file, line);) tokens.push_back(line);
    return tokens;
  }

 private:
  std::string folder_;
};

/// A matrix and a bias of the model, and the view that a layer takes.
struct Linear {
  std::vector<float> weight, bias;

  Linear(const Dump& dump, const std::string& name)
      : weight(dump.values<float>(name + "_weight")), bias(dump.values<float>(name + "_bias")) {}
  attn::LinearWeights<float> view() const {
    return {attn::bhsd(weight.data(), 1, 1, kModelDim, kModelDim), bias.data()};
  }
};

double largest_difference(const attn::Tensor4Buffer<float>& actual,
                          const std::vector<double>& expected) {
  if (static_cast<Index>(expected.size()) != actual.size()) return HUGE_VAL;
  double largest = 0;
  for (Index i = 0; i < actual.size(); ++i) {
    const double e = expected[static_cast<std::size_t>(i)];
    largest = std::max(largest, std::abs(static_cast<double>(actual.data()[i]) - e));
  }
  return largest;
}

/// One head as percentages and as a picture.
template <class Matrix>
bool show_head(const Matrix& weights, const std::vector<std::string>& tokens) {
  std::printf("\nHead %td, percent of attention (rows ask, columns answer):\n\n%12s", kHead, "");
  for (Index j = 0; j < weights.cols(); ++j) std::printf("%4td", j);
  for (Index i = 0; i < weights.rows(); ++i) {
    std::printf("\n%3td %-8s", i, tokens[static_cast<std::size_t>(i)].c_str());
    for (Index j = 0; j < weights.cols(); ++j) {
      std::printf("%4.0f", 100 * static_cast<double>(weights(i, j)));
    }
  }
  attn::HeatmapOptions options;
  options.title = "all-MiniLM-L6-v2, layer 0, head " + std::to_string(kHead);
  options.query_labels = options.key_labels = tokens;
  const std::filesystem::path path = std::filesystem::absolute("minilm_head.svg");
  std::ofstream picture(path);
  picture << attn::heatmap_svg(weights, options) << std::flush;
  std::printf("\n\n%s %s\n", picture ? "Wrote" : "Could not write", path.string().c_str());
  return static_cast<bool>(picture);
}

int run(const Dump& dump) {
  const attn::test::NpyArray input = dump.array("x");
  const Index batch = input.shape.at(0), length = input.shape.at(1);
  const std::vector<float> x = input.values<float>();
  const std::vector<std::int64_t> lengths = dump.values<std::int64_t>("lengths");
  const Linear query(dump, "query"), key(dump, "key"), value(dump, "value"), out(dump, "output");

  attn::AttentionConfig config;
  config.model_dim = kModelDim;
  config.num_heads = kHeads;
  const attn::MultiHeadAttention<float> layer(config, query.view(), key.view(), value.view(),
                                              out.view());
  attn::Tensor4Buffer<float> y({batch, 1, length, kModelDim});
  attn::Tensor4Buffer<float> weights({batch, kHeads, length, length});
  layer.forward(attn::bsd(x.data(), batch, length, kModelDim), y, attn::key_lengths(lengths), {},
                {weights.view(), {}});

  const double of_output = largest_difference(y, dump.values<double>("expected"));
  const double of_weights = largest_difference(weights, dump.values<double>("expected_weights"));
  std::printf("\nThe first attention layer of all-MiniLM-L6-v2, %td sentences of", batch);
  for (const std::int64_t n : lengths) std::printf(" %td", static_cast<Index>(n));
  std::printf(" tokens, against NumPy in float64:\n");
  std::printf("largest difference %.1e of the output, %.1e of the weights (allowed %.0e)\n",
              of_output, of_weights, kTolerance);

  const Index valid = static_cast<Index>(lengths.at(kSentence));
  const std::vector<std::string> all = dump.tokens();
  const auto first = all.begin() + kSentence * length;
  const bool drawn = show_head(weights.view().matrix(kSentence, kHead).topLeftCorner(valid, valid),
                               {first, first + valid});
  return drawn && of_output <= kTolerance && of_weights <= kTolerance ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Dump dump(argc > 1 ? argv[1] : ATTN_REAL_INPUT);
  if (!dump.exists()) {
    std::printf(
        "\nA real model's layer was not run: examples/real_input/dump_minilm.py says how to "
        "get its weights.\n");
    return 0;
  }
  try {
    return run(dump);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

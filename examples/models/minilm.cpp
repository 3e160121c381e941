// A sentence encoder, all-MiniLM-L6-v2: sentences of different lengths in one padded batch, six
// layers of multi-head attention, and embeddings that are compared with those of the original. See
// README.md beside this file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "model_file.hpp"

namespace {

using attn::Index;
using Buffer = attn::Tensor4Buffer<float>;

constexpr Index kModelDim = 384, kHeads = 12, kLayers = 6;
constexpr double kEpsilon = 1e-12;  // of the model's layer normalisation
constexpr double kTolerance = 1e-4;

/// Attention, residual and LayerNorm, then the same around a perceptron of one hidden layer.
struct Layer {
  attn::AttentionBlock<float> attention;
  attn::LinearWeights<float> up, down;
  attn::LayerNormWeights<float> norm;
};

class MiniLm {
 public:
  explicit MiniLm(const models::ModelFile& file) : file_(file) {
    attn::AttentionConfig config;
    config.model_dim = kModelDim;
    config.num_heads = kHeads;
    for (Index i = 0; i < kLayers; ++i) {
      const std::string layer = "encoder.layer." + std::to_string(i) + ".";
      const std::string self = layer + "attention.self.", output = layer + "attention.output.";
      attn::MultiHeadAttention<float> attention(
          config, file.linear(self + "query"), file.linear(self + "key"),
          file.linear(self + "value"), file.linear(output + "dense"));
      layers_.push_back({attn::AttentionBlock<float>(attention, 0, norm(output)),
                         file.linear(layer + "intermediate.dense"),
                         file.linear(layer + "output.dense"), norm(layer + "output.")});
    }
  }

  /// One embedding a sentence, of length 1: the mean of its tokens.
  std::vector<std::vector<double>> embed(const std::vector<std::vector<Index>>& sentences,
                                         attn::Executor* executor) const {
    std::vector<Index> lengths;
    for (const auto& ids : sentences) lengths.push_back(static_cast<Index>(ids.size()));
    const attn::Shape4 shape{static_cast<Index>(sentences.size()), 1,
                             *std::max_element(lengths.begin(), lengths.end()), kModelDim};
    Buffer x(shape), attended(shape);
    look_up(sentences, x);
    attn::layer_norm(x, norm("embeddings."), x, executor);

    attn::AttentionOptions options;
    options.executor = executor;
    for (const Layer& layer : layers_) {
      layer.attention.forward(x, attended, attn::key_lengths(lengths), options);
      add_perceptron(layer, attended, executor);
      attn::layer_norm(attended, layer.norm, x, executor);
    }

    std::vector<std::vector<double>> embeddings;
    for (Index b = 0; b < shape.batch; ++b) {
      std::vector<double> mean(kModelDim);
      double square = 0;
      for (Index d = 0; d < kModelDim; ++d) {
        double sum = 0;
        for (Index i = 0; i < lengths[static_cast<std::size_t>(b)]; ++i) {
          sum += static_cast<double>(x(b, 0, i, d));
        }
        mean[static_cast<std::size_t>(d)] = sum;
        square += sum * sum;
      }
      for (double& value : mean) value /= std::sqrt(square);
      embeddings.push_back(std::move(mean));
    }
    return embeddings;
  }

 private:
  attn::LayerNormWeights<float> norm(const std::string& name) const {
    return {file_.vector(name + "LayerNorm.weight"), file_.vector(name + "LayerNorm.bias"),
            kEpsilon};
  }

  /// Word, position and type embeddings, summed.
  void look_up(const std::vector<std::vector<Index>>& sentences, Buffer& x) const {
    const auto words = file_.matrix("embeddings.word_embeddings.weight");
    const auto positions = file_.matrix("embeddings.position_embeddings.weight");
    const auto types = file_.matrix("embeddings.token_type_embeddings.weight");
    for (std::size_t b = 0; b < sentences.size(); ++b) {
      for (std::size_t i = 0; i < sentences[b].size(); ++i) {
        const Index place = static_cast<Index>(i), id = sentences[b][i];
        for (Index d = 0; d < kModelDim; ++d) {
          x(static_cast<Index>(b), 0, place, d) =
              words(0, 0, id, d) + positions(0, 0, place, d) + types(0, 0, 0, d);
        }
      }
    }
  }

  /// x += down(gelu(up(x)))
  static void add_perceptron(const Layer& layer, Buffer& x, attn::Executor* executor) {
    const attn::LinearOptions options{executor};
    const attn::Shape4 shape = x.shape();
    Buffer hidden({shape.batch, 1, shape.length, layer.up.weight.length()}), change(shape);
    attn::linear(x, layer.up, hidden, options);
    for (Index i = 0; i < hidden.size(); ++i) {
      float& h = hidden.data()[i];
      h = 0.5f * h * (1 + std::erf(h * 0.70710678f));
    }
    attn::linear(hidden, layer.down, change, options);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] += change.data()[i];
  }

  const models::ModelFile& file_;
  std::vector<Layer> layers_;
};

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return dot / std::sqrt(aa * bb);
}

/// The other sentences, the most similar one first.
std::vector<std::size_t> ranked(const std::vector<std::vector<double>>& embeddings,
                                std::size_t sentence) {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    if (i != sentence) others.push_back(i);
  }
  std::sort(others.begin(), others.end(), [&](std::size_t a, std::size_t b) {
    return cosine(embeddings[sentence], embeddings[a]) >
           cosine(embeddings[sentence], embeddings[b]);
  });
  return others;
}

std::vector<std::vector<double>> read_expected() {
  std::ifstream file(ATTN_MODELS_SOURCE "/expected/minilm_embeddings.bin", std::ios::binary);
  std::vector<std::vector<double>> embeddings;
  for (std::vector<float> row(kModelDim);
       file.read(reinterpret_cast<char*>(row.data()), kModelDim * sizeof(float));) {
    embeddings.emplace_back(row.begin(), row.end());
  }
  return embeddings;
}

int run(const std::string& folder) {
  const models::ModelFile file(folder);
  const auto sentences = models::read_lines(ATTN_MODELS_SOURCE "/sentences.txt");
  attn::ThreadPool pool(static_cast<int>((std::max)(1u, std::thread::hardware_concurrency())));
  const auto embeddings = MiniLm(file).embed(models::read_ids(folder + "/tokens.txt"), &pool);
  const auto expected = read_expected();
  if (embeddings.size() != expected.size()) return 1;

  double distance = 0;
  int equal_ranks = 0;
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    distance = (std::max)(distance, 1 - cosine(embeddings[i], expected[i]));
    const auto order = ranked(embeddings, i);
    equal_ranks += order == ranked(expected, i);
    std::printf("%s\n    %.3f  %s\n", sentences[i].c_str(),
                cosine(embeddings[i], embeddings[order[0]]), sentences[order[0]].c_str());
  }
  std::printf(
      "\n%zu sentences. Largest cosine distance to the original: %.1e (at most %.0e). "
      "Similarities ranked as by the original: %d of %zu.\n",
      embeddings.size(), distance, kTolerance, equal_ranks, embeddings.size());
  return distance <= kTolerance && equal_ranks == static_cast<int>(embeddings.size()) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ATTN_MODELS "/minilm";
  if (models::read_lines(folder + "/weights.txt").empty()) {
    std::printf("There is no model in %s; examples/models/run.sh puts it there.\n", folder.c_str());
    return 0;
  }
  try {
    return run(folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

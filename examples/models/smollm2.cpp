// A language model, SmolLM2-135M-Instruct: grouped-query attention (9 query heads share 3 key and
// value heads), rotary positions and a key-value cache; greedy generation, compared with PyTorch's
// token by token. See README.md beside this file.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "model_file.hpp"

namespace {

using attn::Index;
using Buffer = attn::Tensor4Buffer<float>;
using Clock = std::chrono::steady_clock;

constexpr Index kModelDim = 576, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kLayers = 30;
constexpr Index kCapacity = 512, kNewTokens = 64, kEndOfAnswer = 2;
constexpr double kRotaryBase = 100000, kEpsilon = 1e-5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Layer {
  attn::GroupedQueryAttention<float> attention;
  attn::RmsNormWeights<float> attention_norm, perceptron_norm;
  attn::LinearWeights<float> gate, up, down;
};

class SmolLm {
 public:
  SmolLm(const models::ModelFile& file, attn::Executor* executor)
      // GGUF stores the rows of query and key weights for interleaved pairs.
      : rotary_(kHeadDim, attn::RotaryPairing::interleaved, kRotaryBase),
        embedding_{file.matrix("token_embd.weight")},
        norm_{file.vector("output_norm.weight"), kEpsilon},
        executor_(executor) {
    attn::AttentionConfig config;
    config.model_dim = kModelDim;
    config.num_heads = kHeads;
    config.num_kv_heads = kKvHeads;
    for (Index i = 0; i < kLayers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      layers_.push_back({{config, file.linear(layer + "attn_q"), file.linear(layer + "attn_k"),
                          file.linear(layer + "attn_v"), file.linear(layer + "attn_output")},
                         {file.vector(layer + "attn_norm.weight"), kEpsilon},
                         {file.vector(layer + "ffn_norm.weight"), kEpsilon},
                         file.linear(layer + "ffn_gate"),
                         file.linear(layer + "ffn_up"),
                         file.linear(layer + "ffn_down")});
      caches_.emplace_back(1, kKvHeads, kCapacity, kHeadDim);
    }
  }

  /// Feeds tokens behind those so far, and returns the most likely next one.
  Index feed(const std::vector<Index>& tokens) {
    const attn::Shape4 shape{1, 1, static_cast<Index>(tokens.size()), kModelDim};
    Buffer x(shape), normed(shape), change(shape);
    for (Index i = 0; i < shape.length; ++i) {
      for (Index d = 0; d < kModelDim; ++d) {
        x(0, 0, i, d) = embedding_.weight(0, 0, tokens[static_cast<std::size_t>(i)], d);
      }
    }
    attn::AttentionOptions options;
    options.executor = executor_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      attn::rms_norm(x, layer.attention_norm, normed);
      const Clock::time_point start = Clock::now();
      layer.attention.step(normed, caches_[i], change, attn::causal(), options, &rotary_);
      attention_seconds_ += seconds_since(start);
      add(change, x);
      attn::rms_norm(x, layer.perceptron_norm, normed);
      run_perceptron(layer, normed, change);
      add(change, x);
    }
    const auto last = x.view().slice_length(shape.length - 1, 1);
    Buffer logits({1, 1, 1, embedding_.weight.length()});
    attn::rms_norm(last, norm_, last);
    attn::linear(last, embedding_, logits, {executor_});
    return std::max_element(logits.data(), logits.data() + logits.size()) - logits.data();
  }

  void forget() {
    for (auto& cache : caches_) cache.reset();
    attention_seconds_ = 0;
  }
  double attention_seconds() const { return attention_seconds_; }

  /// Seconds that the attention of one more token takes over the caches as they are, without the
  /// projections and all else: what the kernel itself costs.
  double seconds_of_kernel() const {
    Buffer q({1, kHeads, 1, kHeadDim}), out(q.shape());
    attn::AttentionOptions options;
    options.executor = executor_;
    const Clock::time_point start = Clock::now();
    for (const auto& cache : caches_) {
      attn::scaled_dot_product_attention(q, cache, out, attn::causal(), options);
    }
    return seconds_since(start);
  }

 private:
  static void add(const Buffer& change, Buffer& x) {
    for (Index i = 0; i < x.size(); ++i) x.data()[i] += change.data()[i];
  }
  /// out = down(silu(gate(x)) * up(x))
  void run_perceptron(const Layer& layer, const Buffer& x, Buffer& out) const {
    const attn::Shape4 shape{1, 1, x.shape().length, layer.gate.weight.length()};
    Buffer gate(shape), up(shape);
    attn::linear(x, layer.gate, gate, {executor_});
    attn::linear(x, layer.up, up, {executor_});
    for (Index i = 0; i < gate.size(); ++i) {
      const float g = gate.data()[i];
      up.data()[i] *= g / (1 + std::exp(-g));
    }
    attn::linear(up, layer.down, out, {executor_});
  }

  attn::RotaryEmbedding rotary_;
  attn::LinearWeights<float> embedding_;  // shared with the output
  attn::RmsNormWeights<float> norm_;
  std::vector<Layer> layers_;
  std::vector<attn::KeyValueCache<float>> caches_;
  attn::Executor* executor_;
  double attention_seconds_ = 0;
};

/// The text of tokens, up to the end of the answer.
std::string text_of(const std::vector<Index>& tokens, const std::vector<std::string>& pieces) {
  std::string text;
  for (const Index token : tokens) {
    if (token == kEndOfAnswer) break;
    const std::string& hex = pieces[static_cast<std::size_t>(token)];
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
  }
  return text;
}

int run(const std::string& folder, int threads) {
  const models::ModelFile file(folder);
  const auto pieces = models::read_lines(folder + "/pieces.txt");
  const auto questions = models::read_lines(folder + "/questions.txt");
  const auto prompts = models::read_ids(folder + "/tokens.txt");
  // PyTorch's answers are to the questions of prompts.txt.
  const bool is_compared = questions == models::read_lines(ATTN_MODELS_SOURCE "/prompts.txt");
  const auto expected = models::read_ids(ATTN_MODELS_SOURCE "/expected/smollm2_tokens.txt");
  attn::ThreadPool pool(threads);
  SmolLm model(file, &pool);

  bool all_equal = true;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    model.forget();
    Clock::time_point start = Clock::now();
    std::vector<Index> answer = {model.feed(prompts[i])};
    const double prompt_seconds = seconds_since(start);
    const double prompt_attention = model.attention_seconds();
    start = Clock::now();
    while (static_cast<Index>(answer.size()) < kNewTokens) {
      answer.push_back(model.feed({answer.back()}));
    }
    const double seconds = seconds_since(start);
    const double steps = static_cast<double>(answer.size() - 1);
    std::printf("> %s\n%s\n\n", questions[i].c_str(), text_of(answer, pieces).c_str());
    std::printf("  prompt: %zu tokens at %.0f a second; answer: %zu tokens at %.1f a second\n",
                prompts[i].size(), static_cast<double>(prompts[i].size()) / prompt_seconds,
                answer.size(), steps / seconds);
    std::printf(
        "  in attention layers, their projections included: %.0f %% of the time; in the "
        "attention kernel at the end: %.1f %%\n",
        100 * (model.attention_seconds() - prompt_attention) / seconds,
        100 * model.seconds_of_kernel() / (seconds / steps));
    if (is_compared) {
      const bool is_equal = answer == expected[i];
      all_equal = all_equal && is_equal;
      std::printf("  tokens equal to PyTorch's: %s\n", is_equal ? "all 64" : "NO");
    }
    std::printf("\n");
  }
  return all_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = ATTN_MODELS "/smollm2";
  if (models::read_lines(folder + "/weights.txt").empty()) {
    std::printf("There is no model in %s; examples/models/run.sh puts it there.\n", folder.c_str());
    return 0;
  }
  try {
    const int cores = static_cast<int>((std::max)(1u, std::thread::hardware_concurrency()));
    return run(folder, argc > 1 ? std::stoi(argv[1]) : cores);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

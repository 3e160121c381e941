// Multi-head, grouped-query and multi-query attention side by side: one class underneath, which
// differs in how many key and value heads there are, and so in parameters and cache.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "attn/attn.hpp"

namespace {

constexpr attn::Index kModelDim = 512, kHeads = 8, kLength = 20;
constexpr unsigned kSeed = 1;

attn::AttentionConfig config_of(attn::Index num_kv_heads) {
  attn::AttentionConfig config;
  config.model_dim = kModelDim;
  config.num_heads = kHeads;
  config.num_kv_heads = num_kv_heads;
  return config;
}

attn::Tensor4Buffer<float> run(const char* name, const attn::GroupedQueryAttention<float>& layer) {
  attn::Tensor4Buffer<float> x({1, 1, kLength, kModelDim}), out(x.shape());
  for (attn::Index i = 0; i < x.size(); ++i) x.data()[i] = std::sin(static_cast<float>(i));
  layer.forward(x, out, attn::causal());
  std::printf("%-26s", name);
  for (int d = 0; d < 4; ++d) std::printf("%10.6f", static_cast<double>(out(0, 0, 9, d)));
  std::printf("\n");
  return out;
}

bool same_bits(const attn::Tensor4Buffer<float>& a, const attn::Tensor4Buffer<float>& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

}  // namespace

int main() {
  const attn::AttentionCostTable costs = attn::attention_costs(config_of(2), 4096);
  std::printf("8 heads of 64 over 4096 tokens:\n\n%s\n", costs.to_string().c_str());

  std::printf("The first numbers of token 9, layers of one seed:\n\n");
  const auto mha = run("MHA", attn::MultiHeadAttention<float>(kModelDim, kHeads, kSeed));
  const auto gqa_8 = run("GQA, 8 key/value heads", {config_of(8), kSeed});
  const auto gqa_2 = run("GQA, 2 key/value heads", {config_of(2), kSeed});
  const auto gqa_1 = run("GQA, 1 key/value head", {config_of(1), kSeed});
  const auto mqa = run("MQA", attn::MultiQueryAttention<float>(config_of(1), kSeed));

  const bool equal = same_bits(mha, gqa_8) && same_bits(mqa, gqa_1) && !same_bits(mha, gqa_2);
  std::printf("\nGQA with 8 is MHA and GQA with 1 is MQA, bit for bit: %s\n", equal ? "yes" : "no");
  return equal && costs.rows[1].cache_of_mha == 0.25 ? 0 : 1;
}

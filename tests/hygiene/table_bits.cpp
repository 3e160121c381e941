// Prints a checksum of the outputs of every table and element type. Programs that are built from
// this file with different flags must print the same (see same_output.cmake).
#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "attn/attn.hpp"

namespace {

/// FNV-1a. Source: G. Fowler, L. Noll, K.-P. Vo, "The FNV non-cryptographic hash algorithm".
class Checksum {
 public:
  template <class T>
  void add(const attn::Tensor4Buffer<T>& tensor) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(tensor.data());
    const std::size_t count = static_cast<std::size_t>(tensor.size()) * sizeof(T);
    for (std::size_t i = 0; i < count; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001B3u;
  }
  unsigned long long value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

template <class T>
attn::Tensor4Buffer<T> numbers(attn::Shape4 shape, unsigned seed) {
  attn::Tensor4Buffer<T> tensor(shape);
  for (attn::Index i = 0; i < tensor.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    tensor.data()[i] = static_cast<T>(static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
  }
  return tensor;
}

/// Attention in all its forms: `queries` rows, dims and keys that fill no tile or vector.
template <class T>
void attend(attn::InstructionSet set, attn::Index queries, bool allow_bf16_weights,
            Checksum& checksum) {
  const auto q = numbers<T>({1, 4, queries, 37}, 1);
  const auto k = numbers<T>({1, 2, 203, 37}, 2), v = numbers<T>({1, 2, 203, 43}, 3);
  attn::AttentionOptions options;
  options.instruction_set = set;
  options.allow_bf16_weights = allow_bf16_weights;
  for (const double softcap : {0.0, 2.0}) {
    options.scale = 3;  // peaked, so that the maximum moves
    options.softcap = softcap;
    const auto wanted = attn::Want::weights | attn::Want::log_sum_exp;
    const auto plain = attn::scaled_dot_product_attention(q, k, v, attn::no_mask(), options);
    const auto masked =
        attn::scaled_dot_product_attention(q, k, v, attn::causal_bottom_right(), options, wanted);
    checksum.add(plain.output);
    checksum.add(masked.output);
    checksum.add(masked.weights);
    checksum.add(masked.log_sum_exp);
  }
}

void project(attn::InstructionSet set, Checksum& checksum) {
  attn::AttentionConfig config;
  config.model_dim = 60;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  const attn::GroupedQueryAttention<float> layer(config, 4);
  const auto x = numbers<float>({2, 1, 33, 60}, 5);
  attn::Tensor4Buffer<float> out(x.shape());
  attn::AttentionOptions options;
  options.instruction_set = set;
  layer.forward(x, out, attn::causal(), options);
  checksum.add(out);
}

void print(attn::InstructionSet set, const char* what, const Checksum& checksum) {
  std::printf("%s %s %016llx\n", attn::name_of(set), what, checksum.value());
}

template <class T>
void print_attention(attn::InstructionSet set, const char* what, bool allow_bf16_weights = false) {
  Checksum checksum;
  for (const attn::Index queries : {1, 3, 50})
    attend<T>(set, queries, allow_bf16_weights, checksum);
  print(set, what, checksum);
}

}  // namespace

int main() {
  using attn::InstructionSet;
  for (const InstructionSet set :
       {InstructionSet::generic, InstructionSet::sse2, InstructionSet::avx2, InstructionSet::avx512,
        InstructionSet::neon}) {
    if (!attn::detail::is_available(set, attn::active_instruction_set())) continue;
    print_attention<float>(set, "float");
    print_attention<double>(set, "double");
    print_attention<Eigen::half>(set, "half");
    print_attention<Eigen::bfloat16>(set, "bfloat16");
    print_attention<Eigen::bfloat16>(set, "bfloat16 weights", true);
    Checksum layer;
    project(set, layer);
    print(set, "layer", layer);
  }
}

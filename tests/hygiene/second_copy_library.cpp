// A library with a copy of attn of its own, of other flags than the program that loads it.
#include "attn/attention.hpp"
#include "hygiene/second_copy.hpp"

extern "C" __attribute__((visibility("default"))) attn::InstructionSet attend(const float* q,
                                                                              const float* k,
                                                                              const float* v,
                                                                              float* out) {
  const attn::Shape4 keys{1, kHeads, kKeys, kDim}, queries{1, kHeads, kQueries, kDim};
  attn::scaled_dot_product_attention(
      attn::Tensor4<const float>(q, queries), attn::Tensor4<const float>(k, keys),
      attn::Tensor4<const float>(v, keys), attn::Tensor4<float>(out, queries),
      attn::causal_bottom_right());
  return attn::active_instruction_set();
}

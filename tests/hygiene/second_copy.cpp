// Loads the library named on the command line, whose copy of attn must choose and compute as the
// program's own.
#include <dlfcn.h>

#include "hygiene/second_copy.hpp"
#include "hygiene/smoke.hpp"

int main(int, char** arguments) {
  smoke();
  attn::Tensor4Buffer<float> q({1, kHeads, kQueries, kDim}), k({1, kHeads, kKeys, kDim}), v(k);
  SmokeProblem::fill(q, 1);
  SmokeProblem::fill(k, 2);
  SmokeProblem::fill(v, 3);
  const auto ours = attn::scaled_dot_product_attention(q, k, v, attn::causal_bottom_right());

  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "the library loads");
  const auto attend = reinterpret_cast<AttendFunction*>(dlsym(library, "attend"));
  require(attend != nullptr, "the library has its function");
  attn::Tensor4Buffer<float> theirs(q.shape());
  const attn::InstructionSet set = attend(q.data(), k.data(), v.data(), theirs.data());
  require(set == attn::active_instruction_set(), "both copies choose the same kernels");
  for (attn::Index i = 0; i < theirs.size(); ++i) {
    require(bits_of(theirs.data()[i]) == bits_of(ours.output.data()[i]), "both copies' bits agree");
  }
  dlclose(library);
  smoke();
}

// Calls before main, when other files' initialisers may not have run: the choice of kernels must
// not wait for one.
#include "hygiene/smoke.hpp"

namespace {

const attn::InstructionSet set_at_start = [] {
  smoke();
  return attn::active_instruction_set();
}();

}  // namespace

int main() {
  require(set_at_start == attn::active_instruction_set(), "the choice is the same before main");
  smoke();
}

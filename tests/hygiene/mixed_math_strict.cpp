// The half of attn_mixed_math with IEEE arithmetic: NaN in a live key makes its rows NaN, though
// the other half, which does not promise that, may have been linked first.
#include "hygiene/smoke.hpp"

void smoke_fast();

int main() {
  smoke();
  smoke_fast();

  SmokeProblem problem;
  problem.k(1, 0, 2, 1) = float_of_bits(0x7FC00000u);
  const auto result = attn::scaled_dot_product_attention(problem.q.view(), problem.k.view(),
                                                         problem.v.view(), problem.mask());
  for (attn::Index h = 0; h < SmokeProblem::kHeads; ++h) {
    const bool has_nan = !is_finite(result.output(1, h, SmokeProblem::kQueries - 1, 0));
    require(has_nan == (h < SmokeProblem::kHeads / SmokeProblem::kKeyHeads),
            "NaN reaches the rows that see it, and no other");
  }
}

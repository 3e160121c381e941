// error: attn: this modify_score function takes float, and would round the scores
#include "attn/attention.hpp"

int main() {
  double data[4] = {};
  const attn::Tensor4<double> tensor(data, {1, 1, 2, 2});
#ifdef ATTN_EXPECT_ERROR
  const auto halve = [](const float& score, attn::ScorePosition) { return score / 2; };
#else
  const auto halve = [](const double& score, attn::ScorePosition) { return score / 2; };
#endif
  attn::scaled_dot_product_attention(tensor, tensor, tensor, tensor, attn::modify_score(halve));
}

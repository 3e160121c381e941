// Keys that lie in two places (a shared prompt and a request's own tokens, or two machines):
// attention over each, merged exactly.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "attn/attn.hpp"

int main() {
  constexpr attn::Index kQueries = 3, kKeys = 50, kShared = 32, kDim = 8;
  attn::Tensor4Buffer<float> q({1, 4, kQueries, kDim}), k({1, 2, kKeys, kDim}),
      v({1, 2, kKeys, kDim});
  for (attn::Index i = 0; i < q.size(); ++i) q.data()[i] = std::sin(static_cast<float>(i));
  for (attn::Index i = 0; i < k.size(); ++i) {
    k.data()[i] = std::cos(static_cast<float>(2 * i));
    v.data()[i] = std::sin(static_cast<float>(3 * i + 1));
  }
  const auto part = [](const auto& tensor, attn::Index first, attn::Index count) {
    return tensor.view().slice_length(first, count);
  };

  // The log-sum-exp of a part says how much it weighs against the other.
  const auto want = attn::Want::log_sum_exp;
  auto merged = attn::scaled_dot_product_attention(q, part(k, 0, kShared), part(v, 0, kShared),
                                                   attn::no_mask(), {}, want);
  const auto own = attn::scaled_dot_product_attention(q, part(k, kShared, kKeys - kShared),
                                                      part(v, kShared, kKeys - kShared),
                                                      attn::no_mask(), {}, want);
  attn::merge_attention(merged.output, merged.log_sum_exp, own.output, own.log_sum_exp,
                        merged.output, merged.log_sum_exp);

  const auto whole = attn::scaled_dot_product_attention(q, k, v, attn::no_mask(), {}, want);
  float largest = 0;
  for (attn::Index i = 0; i < whole.output.size(); ++i) {
    largest = std::max(largest, std::abs(merged.output.data()[i] - whole.output.data()[i]));
  }
  for (attn::Index i = 0; i < whole.log_sum_exp.size(); ++i) {
    largest =
        std::max(largest, std::abs(merged.log_sum_exp.data()[i] - whole.log_sum_exp.data()[i]));
  }
  std::printf("%td shared keys and %td own ones, merged, against all %td at once:\n", kShared,
              kKeys - kShared, kKeys);
  std::printf("largest difference of output and log-sum-exp %.1e\n", static_cast<double>(largest));
  return largest < 2e-6f ? 0 : 1;  // a few roundings of numbers below 8
}

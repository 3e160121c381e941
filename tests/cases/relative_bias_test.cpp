// Public reports: relative positions as biases, without a copy of a square.
#include <gtest/gtest.h>

#include "attn/attn.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

// Dao-AILab/flash-attention#956: one bias a distance j - i, from a table of 2S - 1 a head. A view
// whose query stride is -1 and whose key stride is 1 is the S x S bias.
TEST(RelativeBias, R23IsAViewOfATable) {
  for (const Index length : {1, 5, 70}) {
    const Sizes sizes{2, 4, 2, 2, length, length, 8, 6};
    const Index distances = 2 * length - 1;
    TestTensor<float> table({1, 4, 1, distances});
    table.fill_uniform(9, 2);
    const Tensor4<const float> bias(&table(0, 0, 0, length - 1), {1, 4, length, length},
                                    Stride4{0, distances, -1, 1});
    const auto distance = changes([&](auto score, Index, Index h, Index i, Index j) {
      return score + static_cast<decltype(score)>(table(0, h, 0, j - i + length - 1));
    });
    expect_attention<float>(Inputs<float>(sizes), add_bias(bias), distance);
    expect_attention<float>(
        Inputs<float>(sizes), causal() & add_bias(bias),
        keeps([](Index, Index, Index i, Index j) { return j <= i; }) & distance);
  }
}

// espnet/espnet#2684: scores of query i against distance r (Transformer-XL). Row i of an
// S x (2S - 1) matrix holds its distances S - 1 .. -(S - 1); the score of key j stands at
// S - 1 - i + j, and the shift is a view whose query stride is one less than a row.
TEST(RelativeBias, R30ShiftsByItsStride) {
  for (const Index length : {1, 2, 33}) {
    const Sizes sizes{1, 3, 3, 3, length, length, 8, 8};
    const Index distances = 2 * length - 1;
    TestTensor<float> scores({1, 3, length, distances});
    scores.fill_uniform(10, 2);
    const Tensor4<const float> shifted(&scores(0, 0, 0, length - 1), {1, 3, length, length},
                                       Stride4{0, length * distances, distances - 1, 1});
    expect_attention<float>(
        Inputs<float>(sizes), add_bias(shifted),
        changes([&](auto score, Index, Index h, Index i, Index j) {
          return score + static_cast<decltype(score)>(scores(0, h, i, length - 1 - i + j));
        }));
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// Public bug reports: how many keys a sliding window holds.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"

namespace attn {
namespace test {
namespace {

// huggingface/transformers#39408: a window of W keys is taken for W keys beside the query's own.
TEST(Window, D17WindowOfThreeKeysHoldsThree) {
  const MeanProbe<> probe = bits_probe(6, 6);
  const std::vector<double> expected = {1, 1.5, 7.0 / 3, 14.0 / 3, 28.0 / 3, 56.0 / 3};
  expect_means(probe.outputs(sliding_window(2, 0)), expected);
  expect_means(probe.outputs(causal() & sliding_window(2, kUnlimited)), expected);
  expect_means(probe.outputs(sliding_window(0, 0)), {1, 2, 4, 8, 16, 32});
  const std::vector<double> all = {1, 1.5, 7.0 / 3, 3.75, 6.2, 10.5};
  for (const Index left : {Index{5}, Index{6}, Index{1000}, kUnlimited}) {
    expect_means(probe.outputs(sliding_window(left, 0)), all);
  }
}

// jax-ml/jax#32300: a window is ignored where no other mask is given.
TEST(Window, D18RestrictsOnItsOwn) {
  expect_means(bits_probe(5, 5).outputs(sliding_window(1, 0)), {1, 1.5, 3, 6, 12});

  const MeanProbe<> longer(64, 64, [](Index j) { return static_cast<double>(j); });
  std::vector<double> of_two, of_33;
  for (Index i = 0; i < 64; ++i) {
    of_two.push_back(static_cast<double>(i) - (i > 0 ? 0.5 : 0));
    of_33.push_back(static_cast<double>(i + (std::max)(Index{0}, i - 32)) / 2);
  }
  expect_means(longer.outputs(sliding_window(1, 0)), of_two);
  expect_means(longer.outputs(sliding_window(32, 0)), of_33);
}

// huggingface/transformers#46305: a right window of R keys loses the last one.
TEST(Window, D19RightEndCounts) {
  expect_means(bits_probe(6, 6).outputs(sliding_window(0, 2)),
               {7.0 / 3, 14.0 / 3, 28.0 / 3, 56.0 / 3, 24, 32});
}

}  // namespace
}  // namespace test
}  // namespace attn

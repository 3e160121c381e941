// The kernel that turns a row's scores into its weights once max and divisor are known, by itself.
#include "attn/config.hpp"

#include "attn/detail/base/float_bits.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attn/detail/kernels/micro_kernels.hpp"
#include "support/oracle.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

template <class A>
class KernelWeights : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(KernelWeights, Types, test::TypeNames);

/// Scores of one row that lie up to 60 below its max, every seventh of them dropped.
template <class A>
std::vector<A> scores_below(A max, Index count) {
  std::vector<A> scores;
  for (Index i = 0; i < count; ++i) {
    const double x = 30 * (test::uniform(5, static_cast<std::uint64_t>(i)) - 1);
    scores.push_back(i % 7 == 3 ? detail::negative_infinity<A>() : max + static_cast<A>(x));
  }
  return scores;
}

/// f(kernels) for the table of each instruction set.
template <class A, class F>
void for_each_table(const F& f) {
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(name_of(set));
    f(detail::kernels<A>(set));
  }
}

TYPED_TEST(KernelWeights, AreExpOverDivisor) {
  using A = TypeParam;
  for_each_table<A>([](const detail::KernelTable<A>& kernels) {
    const Index count = 5 * kernels.lanes;
    const A max = A(1.75), divisor = A(3.3);
    const std::vector<A> scores = scores_below(max, count);
    std::vector<A> weights = scores;
    kernels.dim_weights(weights.data(), count, max, divisor);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      // exp: 2 + |x| / 2 epsilon, x rounded: |x| / 2, and the division: 1 / 2.
      const long double x = test::widen(scores[i]) - test::widen(max);
      const long double expected = std::exp(x) / test::widen(divisor);
      const long double relative = (2.5L + std::abs(x)) * test::epsilon<A>();
      if (detail::is_negative_infinity(scores[i])) {
        EXPECT_TRUE(test::same_bits(weights[i], A(0)));
      } else {
        EXPECT_LE(std::abs(test::widen(weights[i]) - expected), relative * expected) << x;
      }
    }
  });
}

TYPED_TEST(KernelWeights, AreThoseOfTheSoftmaxToTheBit) {
  using A = TypeParam;
  for_each_table<A>([](const detail::KernelTable<A>& kernels) {
    const Index count = 9 * kernels.lanes;
    // The max of a softmax may lie up to 8 ln 2 below the largest score.
    for (const A max : {A(0), A(-2.5), A(40)}) {
      std::vector<A> weights = scores_below(max + A(5), count), expected = weights;
      A unchanged = max, sum = 0, correction = 0;
      kernels.dim_softmax(expected.data(), count, 1, count, &unchanged, &sum, &correction);
      ASSERT_EQ(unchanged, max);
      kernels.dim_weights(weights.data(), count, max, sum);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(test::same_bits(weights[i], expected[i] / sum)) << i;
      }
    }
  });
}

TYPED_TEST(KernelWeights, DroppedKeysWeighNothingWhateverTheRowHolds) {
  using A = TypeParam;
  const A nan = test::quiet_nan<A>(), none = detail::negative_infinity<A>();
  for_each_table<A>([=](const detail::KernelTable<A>& kernels) {
    const auto weights_of = [&](A first, A max, A divisor) {
      std::vector<A> weights(static_cast<std::size_t>(kernels.lanes), none);
      weights[0] = first;
      kernels.dim_weights(weights.data(), kernels.lanes, max, divisor);
      for (std::size_t i = 1; i < weights.size(); ++i) {
        EXPECT_TRUE(test::same_bits(weights[i], A(0))) << weights[i];
      }
      return weights[0];
    };
    EXPECT_EQ(weights_of(2, 2, 1), 1);
    EXPECT_TRUE(std::isnan(weights_of(2, 2, nan))) << "a NaN beside it";
    EXPECT_TRUE(std::isnan(weights_of(2, nan, nan)));
    EXPECT_TRUE(std::isnan(weights_of(nan, 2, nan)));
    EXPECT_TRUE(test::same_bits(weights_of(none, none, 1), A(0))) << "a row without keys";
  });
}

}  // namespace
}  // namespace attn

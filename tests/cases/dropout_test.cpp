// Public bug reports: dropout where none was asked for, and its ends 0 and 1.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

const Sizes kSizes{2, 4, 2, 2, 6, 9, 8, 5};

AttentionResult<float, float> attend(const Inputs<float>& in, const AttentionOptions& options) {
  return scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), AnyMask(), options,
                                      Want::weights);
}

// pytorch/pytorch#124464: the functional form drops in evaluation too.
TEST(Dropout, D37NothingIsDroppedUnlessAsked) {
  const Inputs<float> in(kSizes);
  const auto first = attend(in, {}), second = attend(in, {});
  EXPECT_TRUE(same_bits(first.output.view(), second.output.view()));
  for_each_index(kSizes.scores(), [&](Index b, Index h, Index i, Index j) {
    EXPECT_GT(first.weights(b, h, i, j), 0);
  });
}

// pytorch/pytorch#1833: p = 1 divides by 1 - p = 0.
TEST(Dropout, D38ProbabilitiesZeroAndOne) {
  const Inputs<float> in(kSizes);
  AttentionOptions all;
  all.dropout = {1, 3, 4};
  const auto nothing = attend(in, all);
  for_each_index(kSizes.out(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_TRUE(same_bits(nothing.output(b, h, i, d), 0.0f));
  });
  for_each_index(kSizes.scores(), [&](Index b, Index h, Index i, Index j) {
    EXPECT_TRUE(same_bits(nothing.weights(b, h, i, j), 0.0f));
  });

  AttentionOptions none;
  none.dropout = {0, 3, 4};
  const auto everything = attend(in, none), plain = attend(in, {});
  EXPECT_TRUE(same_bits(everything.output.view(), plain.output.view()));
  EXPECT_TRUE(same_bits(everything.weights.view(), plain.weights.view()));
}

TEST(Dropout, D38OtherProbabilitiesAreErrors) {
  const Inputs<float> in(kSizes);
  TestTensor<float> out(kSizes.out());
  for (const double probability : {-0.1, 1.1, quiet_nan<double>(), infinity<double>()}) {
    AttentionOptions options;
    options.dropout.probability = probability;
    EXPECT_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                                              AnyMask(), options),
                 OptionError);
  }
  EXPECT_TRUE(out.is_untouched());
}

// pytorch/pytorch#42929: returned weights sum to more than 1. They are those after dropout, on
// every path: the ones that met the values.
TEST(Dropout, D40ReturnedWeightsAreThoseAfterDropout) {
  for (const Index queries : {5, 2000}) {
    const Index heads = 2000 / queries;
    const MeanProbe<> probe(
        queries, 5, [](Index) { return 1.0; }, heads, 1);
    AttentionOptions options;
    options.dropout = {0.2, 11, 12};
    const auto result = scaled_dot_product_attention(probe.q.view(), probe.k.view(), probe.v.view(),
                                                     AnyMask(), options, Want::weights);
    double total = 0;
    for_each_index({1, heads, queries, 1}, [&](Index b, Index h, Index i, Index) {
      double sum = 0;
      for (Index j = 0; j < 5; ++j) {
        const double weight = static_cast<double>(result.weights(b, h, i, j));
        if (weight != 0) {
          EXPECT_NEAR(weight, 0.25, 0.25 * mean_tolerance<float>());
        }
        sum += weight;
      }
      EXPECT_NEAR(static_cast<double>(result.output(b, h, i, 0)), sum,
                  1.25 * mean_tolerance<float>());
      total += sum;
    });
    // A row's sum deviates by sqrt(5 * 0.2 * 0.8) / 4 = 0.224, the mean of 2000 by 0.005.
    EXPECT_NEAR(total / 2000, 1, 0.02);
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

// NaN and infinity that are seen go where IEEE sends them, and no further.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention_special_test/one_query.hpp"
#include "attn/attention.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::infinity;
using test::Inputs;
using test::OneQuery;
using test::quiet_nan;
using test::same_bits;
using test::Sizes;

TEST(NotFinite, ANanInAQueryStaysInItsRow) {
  for (const Index queries : {3, 33}) {
    const Sizes sizes{2, 4, 2, 2, queries, 16, 8, 5};
    Inputs<float> in(sizes, 75);
    const auto clean = test::run(in, no_mask());
    in.q(1, 2, 2, 3) = quiet_nan<float>();
    const auto results = test::run(in, no_mask());
    test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      const float out = results.out(b, h, i, d);
      if (b == 1 && h == 2 && i == 2) {
        EXPECT_TRUE(std::isnan(out));
      } else {
        EXPECT_TRUE(same_bits(out, clean.out(b, h, i, d)));
      }
    });
    for (Index j = 0; j < sizes.key_length; ++j)
      EXPECT_TRUE(std::isnan(results.weights(1, 2, 2, j)));
    EXPECT_TRUE(std::isnan(results.log_sum_exp(1, 2, 2, 0)));
  }
}

TEST(NotFinite, AScoreOfPlusInfinityOrNanMakesTheRowNan) {
  for (const double bad : {infinity<double>(), quiet_nan<double>(), -quiet_nan<double>()}) {
    for (const std::size_t place : {0u, 1u, 130u, 299u}) {
      OneQuery query{std::vector<double>(300, 0.5), std::vector<double>(300, 1), {}};
      query.key[place] = bad;
      bool dropped[300] = {};
      dropped[7] = true;
      test::for_each_form<float>(
          query, drop_where(Tensor4<bool>(dropped, {1, 1, 1, 300})), [&](const auto& r, Index i) {
            EXPECT_TRUE(std::isnan(r.out(0, 0, i, 0)));
            EXPECT_TRUE(std::isnan(r.log_sum_exp(0, 0, i, 0)));
            for (Index j = 0; j < 300; ++j) {
              const float weight = r.weights(0, 0, i, j);
              EXPECT_TRUE(j == 7 ? same_bits(weight, 0.0f) : std::isnan(weight))
                  << "key " << j << ": " << weight;
            }
          });
    }
  }
}

TEST(NotFinite, InfiniteValuesFollowTheirWeight) {
  const double inf = infinity<double>(), nan = quiet_nan<double>();
  struct Case {
    std::vector<double> value;
    double expected;
  };
  for (const Case& c : std::vector<Case>{{{1, inf, 2}, inf},
                                         {{1, -inf, 2}, -inf},
                                         {{inf, 5, inf}, inf},
                                         {{inf, 5, -inf}, nan},
                                         {{1, nan, 2}, nan},
                                         {{inf, nan, -inf}, nan}}) {
    const OneQuery query{{0.25, 0, 0.5}, c.value, {}};
    test::for_each_form<float>(query, no_mask(), [&](const auto& r, Index i) {
      const double out = static_cast<double>(r.out(0, 0, i, 0));
      EXPECT_TRUE(out == c.expected || (std::isnan(out) && std::isnan(c.expected))) << out;
      EXPECT_TRUE(std::isfinite(r.log_sum_exp(0, 0, i, 0)));
    });
    // The same with splits of keys in between.
    OneQuery far = query;
    far.key.insert(far.key.begin() + 1, 9000, -0.5);
    far.value.insert(far.value.begin() + 1, 9000, 1);
    const double out = static_cast<double>(far.run<float>(1).out(0, 0, 0, 0));
    EXPECT_TRUE(out == c.expected || (std::isnan(out) && std::isnan(c.expected))) << out;
  }
}

TEST(NotFinite, OneColumnDoesNotReachTheOthers) {
  for (const Index queries : {2, 20}) {
    const Sizes sizes{1, 1, 1, 1, queries, 40, 3, 37};
    Inputs<float> in(sizes, 76);
    const auto clean = test::run(in, no_mask());
    in.v(0, 0, 11, 7) = quiet_nan<float>();
    in.v(0, 0, 12, 36) = infinity<float>();
    const auto results = test::run(in, no_mask());
    test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      const float out = results.out(b, h, i, d);
      if (d == 7) {
        EXPECT_TRUE(std::isnan(out));
      } else if (d == 36) {
        EXPECT_EQ(out, infinity<float>());
      } else {
        EXPECT_TRUE(same_bits(out, clean.out(b, h, i, d)));
      }
    });
  }
}

}  // namespace
}  // namespace attn

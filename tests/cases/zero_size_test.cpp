// Public bug reports: axes of length 0.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

template <class T>
class ZeroSize : public ::testing::Test {};
using SomeTypes = ::testing::Types<float, Eigen::half>;
TYPED_TEST_SUITE(ZeroSize, SomeTypes, TypeNames);

// pytorch/pytorch#141219: no queries and no keys, causal: a division by zero.
TYPED_TEST(ZeroSize, D24NoQueriesNoKeysNoKeyDim) {
  using T = TypeParam;
  TestTensor<T> none({7, 9, 0, 7});
  const auto empty =
      scaled_dot_product_attention(none.view(), none.view(), none.view(), AnyMask(causal()));
  EXPECT_EQ(empty.output.shape(), (Shape4{7, 9, 0, 7}));

  TestTensor<T> no_queries({1, 2, 0, 7}), keys({1, 2, 5, 7});
  keys.fill_uniform(1);
  const auto still_empty = scaled_dot_product_attention(no_queries.view(), keys.view(), keys.view(),
                                                        AnyMask(causal_bottom_right()), {},
                                                        Want::weights | Want::log_sum_exp);
  EXPECT_EQ(still_empty.output.shape(), (Shape4{1, 2, 0, 7}));
  EXPECT_EQ(still_empty.weights.shape(), (Shape4{1, 2, 0, 5}));

  // Without a key dim all scores are 0, and the default scale 1 / sqrt(0) is never formed.
  TestTensor<T> q({1, 1, 2, 0}), k({1, 1, 3, 0}), v({1, 1, 3, 1});
  v.fill([](Index, Index, Index j, Index) { return static_cast<float>(3 * j); });
  const auto mean = scaled_dot_product_attention(q.view(), k.view(), v.view(), AnyMask());
  for (Index i = 0; i < 2; ++i) {
    EXPECT_NEAR(static_cast<double>(mean.output(0, 0, i, 0)), 3, 3 * mean_tolerance<T>());
  }
}

// pytorch/pytorch#174939: any axis of length 0 crashes, or leaves the output as it was.
TYPED_TEST(ZeroSize, D25EveryAxisMayBeZero) {
  using T = TypeParam;
  using A = AccumulationType<T>;
  const Sizes plain{1, 1, 1, 1, 3, 4, 5, 4};
  for (int axis = 0; axis < 4; ++axis) {
    Sizes sizes = plain;
    if (axis == 0) sizes.batch = 0;
    if (axis == 1) sizes.query_heads = sizes.key_heads = sizes.value_heads = 0;
    if (axis == 2) sizes.key_length = 0;
    if (axis == 3) sizes.value_dim = 0;
    TestTensor<T> q(sizes.q()), k(sizes.k()), v(sizes.v()), out(sizes.out());  // out holds NaN
    q.fill_uniform(1);
    k.fill_uniform(2);
    v.fill_uniform(3);
    TestTensor<A> weights(sizes.scores()), lse(sizes.rows());
    scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), AnyMask(), {},
                                 AttentionOutputs<A>{weights.view(), lse.view()});
    EXPECT_TRUE(out.gaps_are_untouched());
    for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      EXPECT_TRUE(same_bits(out(b, h, i, d), T(0)));  // only without keys is there an output
    });
    for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
      if (axis == 2) {
        EXPECT_EQ(lse(b, h, i, 0), -infinity<A>());
      } else {
        EXPECT_FALSE(std::isnan(lse(b, h, i, 0)));
      }
    });
  }
  // Query heads without key heads have nothing to read.
  TestTensor<T> q({1, 2, 3, 5}), no_heads({1, 0, 4, 5}), out({1, 2, 3, 5});
  q.fill_uniform(1);
  EXPECT_THROW(scaled_dot_product_attention(q.view(), no_heads.view(), no_heads.view(), out.view(),
                                            AnyMask()),
               ShapeError);
  EXPECT_TRUE(out.is_untouched());
}

}  // namespace
}  // namespace test
}  // namespace attn

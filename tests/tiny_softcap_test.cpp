// Options are doubles, and round to the accumulation type. A softcap of 0 means none, so a small
// one must not become it.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attention.hpp"

namespace attn {
namespace {

template <class T>
float attend_with(double softcap) {
  const std::vector<T> q = {T(1), T(2)}, k = {T(1), T(0), T(0), T(3)}, v = {T(1), T(5)};
  std::vector<T> out(1);
  AttentionOptions options;
  options.softcap = softcap;
  scaled_dot_product_attention(Tensor4<const T>(q.data(), Shape4{1, 1, 1, 2}),
                               Tensor4<const T>(k.data(), Shape4{1, 1, 2, 2}),
                               Tensor4<const T>(v.data(), Shape4{1, 1, 2, 1}),
                               Tensor4<T>(out.data(), Shape4{1, 1, 1, 1}), no_mask(), options);
  return static_cast<float>(out[0]);
}

TEST(TinySoftcap, IsRefusedWhereItRoundsToNone) {
  EXPECT_THROW(attend_with<float>(1e-46), OptionError);
  EXPECT_THROW(attend_with<double>(-1e-320), OptionError);
  // Where it does not, scores are all but 0, and keys count alike.
  EXPECT_NEAR(attend_with<float>(1e-30), 3.0f, 1e-6f);
  EXPECT_NEAR(attend_with<double>(1e-46), 3.0f, 1e-6f);
  EXPECT_NEAR(attend_with<double>(1e-320), 3.0f, 1e-6f);
  EXPECT_GT(attend_with<float>(0), 4.0f);
}

}  // namespace
}  // namespace attn

#include "attn/config.hpp"

#include "attn/detail/text/numbers.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace attn {
namespace {

TEST(Numbers, OfNaNHaveNoSign) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(detail::general(nan), "nan");
  EXPECT_EQ(detail::general(-nan), "nan");
  EXPECT_EQ(detail::fixed(-nan, 3), "nan");
}

TEST(Numbers, AreShort) {
  EXPECT_EQ(detail::general(-1e-7), "-1e-07");
  EXPECT_EQ(detail::general(0.5), "0.5");
  EXPECT_EQ(detail::fixed(2.0 / 3, 3), "0.667");
  EXPECT_EQ(detail::general(-std::numeric_limits<double>::infinity()), "-inf");
}

}  // namespace
}  // namespace attn

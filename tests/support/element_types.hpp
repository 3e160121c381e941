// tests/support/element_types.hpp - the lists of types that typed tests run over.
#pragma once

#include <gtest/gtest.h>

#include <Eigen/Core>

#include "support/values.hpp"  // TypeNames

namespace attn {
namespace test {

/// All that a tensor may hold.
using ElementTypes = ::testing::Types<float, double, Eigen::half, Eigen::bfloat16>;

/// Those that are stored in 16 bits and computed with in float.
using SixteenBitTypes = ::testing::Types<Eigen::half, Eigen::bfloat16>;

/// Those that are computed with.
using AccumulationTypes = ::testing::Types<float, double>;

}  // namespace test
}  // namespace attn

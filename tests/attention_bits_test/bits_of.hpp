// tests/attention_bits_test/bits_of.hpp - the calls whose bits are compared.
#pragma once

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <vector>

#include "support/oracle.hpp"

namespace attn {

/// The forms and ways to split the work: few rows, several blocks of rows, split keys.
inline std::vector<test::Sizes> bit_sizes() {
  return {{2, 4, 2, 2, 3, 37, 9, 6},
          {2, 6, 3, 3, 31, 150, 20, 33},
          {1, 2, 1, 1, 99, 20, 5, 900},
          {1, 4, 2, 4, 2, 4200, 4, 5},
          {1, 2, 1, 1, 10, 4200, 4, 5}};
}

template <class T>
class BitsOf : public ::testing::Test {};
using BitTypes = ::testing::Types<float, double, Eigen::bfloat16>;  // half is read as bfloat16 is
TYPED_TEST_SUITE(BitsOf, BitTypes, test::TypeNames);

}  // namespace attn

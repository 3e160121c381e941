// tests/kv_cache_test/cache.hpp - the sizes of the caches of these tests.
#pragma once

#include <gtest/gtest.h>

#include "support/element_types.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {

// Each head has its own dims.
inline constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 6;

inline TestTensor<float> queries(Index batch, Index heads, Index length, Index dim) {
  TestTensor<float> q({batch, heads, length, dim});
  q.fill_uniform(77, 3);
  return q;
}

template <class T>
class CacheOf : public ::testing::Test {};
TYPED_TEST_SUITE(CacheOf, ElementTypes, TypeNames);

}  // namespace test
}  // namespace attn

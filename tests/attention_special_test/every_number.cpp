// Every number of 16 bits, as a value, a key and a query.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attn/attention.hpp"
#include "support/element_types.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using test::infinity;
using test::TestTensor;

/// Every bit pattern of a 16-bit type.
template <class T>
T pattern(Index bits) {
  const auto raw = static_cast<std::uint16_t>(bits);
  T value;
  std::memcpy(static_cast<void*>(&value), &raw, sizeof value);
  return value;
}

template <class T>
class EveryNumberOf : public ::testing::Test {};
TYPED_TEST_SUITE(EveryNumberOf, test::SixteenBitTypes, test::TypeNames);

// One key: out is v itself, its subnormals and infinities included.
TYPED_TEST(EveryNumberOf, PassesThroughV) {
  using T = TypeParam;
  const Index count = 65536;
  for (const InstructionSet set : test::instruction_sets()) {
    for (const Index rows : {1, 16}) {
      for (const test::Layout layout : {test::Layout::contiguous, test::Layout::inner_stride}) {
        TestTensor<T> q({1, 1, rows, 1}), k({1, 1, 1, 1}), v({1, 1, 1, count}, layout),
            out({1, 1, rows, count});
        q.fill_value(T(0.0f));
        k.fill_value(T(0.0f));
        v.fill([](Index, Index, Index, Index d) { return pattern<T>(d); });
        AttentionOptions options;
        options.instruction_set = set;
        scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), no_mask(), options);
        Index wrong = 0;
        for (Index d = 0; d < count; ++d) {
          const T expected = pattern<T>(d), actual = out(0, 0, rows - 1, d);
          const bool same = expected != expected ? actual != actual : expected == actual;
          wrong += !same;
        }
        EXPECT_EQ(wrong, 0) << name_of(set) << ", rows " << rows;
      }
    }
  }
}

// One key: the log-sum-exp is the score q * k, exactly k where q = 1, and q where k = 1.
TYPED_TEST(EveryNumberOf, EntersTheScores) {
  using T = TypeParam;
  const Index count = 65536;
  AttentionOptions options;
  options.scale = 1;
  for (const InstructionSet set : test::instruction_sets()) {
    options.instruction_set = set;
    TestTensor<T> one({1, 1, 1, 1}), out({1, 1, count, 1}), out_of_batch({count, 1, 1, 1});
    TestTensor<T> many({1, 1, count, 1});
    TestTensor<float> of_query({1, 1, count, 1}), of_key({count, 1, 1, 1});
    one.fill_value(T(1.0f));
    many.fill([](Index, Index, Index i, Index) { return pattern<T>(i); });
    const Tensor4<const T> batches(many.view().data(), {count, 1, 1, 1});
    scaled_dot_product_attention(many.view(), one.view(), one.view(), out.view(), no_mask(),
                                 options, {{}, of_query.view()});
    const Tensor4<const T> ones(one.view().data(), {count, 1, 1, 1}, Stride4{0, 0, 0, 0});
    scaled_dot_product_attention(ones, batches, ones, out_of_batch.view(), no_mask(), options,
                                 {{}, of_key.view()});
    Index wrong = 0;
    for (Index i = 0; i < count; ++i) {
      const float expected = static_cast<float>(pattern<T>(i));
      for (const float actual : {of_query(0, 0, i, 0), of_key(i, 0, 0, 0)}) {
        const bool is_nan = std::isnan(expected) || expected == infinity<float>();
        wrong += is_nan ? !std::isnan(actual) : actual != expected;
      }
    }
    EXPECT_EQ(wrong, 0) << name_of(set);
  }
}

}  // namespace
}  // namespace attn

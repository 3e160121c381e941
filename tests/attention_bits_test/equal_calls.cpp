// Line 16 of the contract: calls that mean the same - by another type, mask, table or form - have
// the same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention_bits_test/bits_of.hpp"
#include "attn/attention.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::expect_same;
using test::Inputs;
using test::Results;
using test::run;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

// float inputs give double the same numbers as double inputs: conversion is exact and happens
// before anything else.
TEST(Bits, OfTheSameNumbersInAnotherType) {
  for (const Sizes& sizes : bit_sizes()) {
    const Inputs<half> in(sizes, 84);
    Inputs<float> wide(sizes, 84);
    const auto widen = [](const auto& from) {
      return
          [&](Index b, Index h, Index i, Index d) { return static_cast<float>(from(b, h, i, d)); };
    };
    wide.q.fill(widen(in.q));
    wide.k.fill(widen(in.k));
    wide.v.fill(widen(in.v));
    TestTensor<float> a(sizes.out()), b(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), a.view());
    scaled_dot_product_attention(wide.q.view(), wide.k.view(), wide.v.view(), b.view());
    EXPECT_TRUE(same_bits(a.view(), b.view()));
  }
}

// A mask that skips tiles and one that is looked up in each of them, of the same keys.
TYPED_TEST(BitsOf, AreThoseOfTheSameKeysByAnotherMask) {
  // The masks do not know the element type: every instruction set in float, the best in the others.
  const std::vector<InstructionSet> sets = std::is_same_v<TypeParam, float>
                                               ? test::instruction_sets()
                                               : std::vector<InstructionSet>{InstructionSet::best};
  for (const InstructionSet set : sets) {
    for (const Sizes& sizes : bit_sizes()) {
      const Index offset = sizes.key_length - sizes.query_length;
      const Inputs<TypeParam> in(sizes, 91);
      AttentionOptions options;
      options.query_offset = offset;
      options.dropout = {0.1, 2, 3};
      options.instruction_set = set;
      const auto check = [&](const AnyMask& mask, const std::string& what) {
        TestTensor<bool> allowed(sizes.scores()), blocked(sizes.scores());
        TestTensor<TypeParam> bias(sizes.scores());
        const auto allows = [&](Index b, Index h, Index i, Index j) {
          return mask.allows({b, h, i, j, i + offset});
        };
        allowed.fill(allows);
        blocked.fill([&](Index b, Index h, Index i, Index j) { return !allows(b, h, i, j); });
        bias.fill([&](Index b, Index h, Index i, Index j) {
          return allows(b, h, i, j) ? TypeParam(0) : -test::infinity<TypeParam>();
        });
        const Results<TypeParam> expected = run(in, mask, options);
        expect_same(run(in, AnyMask(keep_where(allowed.view())), options), expected,
                    what + " by keep_where");
        expect_same(run(in, AnyMask(drop_where(blocked.view())), options), expected,
                    what + " by drop_where");
        expect_same(run(in, AnyMask(add_bias(bias.view())), options), expected,
                    what + " by add_bias");
        expect_same(
            run(in, AnyMask(keep_if([&](ScorePosition at) { return mask.allows(at); })), options),
            expected, what + " by keep_if");
        expect_same(run(in, mask & no_mask(), options), expected, what + " by &");
      };
      check(causal(), "causal");
      check(sliding_window(20, 3), "sliding_window");
      check(key_lengths(sizes.key_length / 2 + 1), "key_lengths");
      check(causal() & sliding_window(9, kUnlimited), "causal and window");
    }
  }
}

TEST(Bits, OfSse2AreThoseOfGeneric) {
  AttentionOptions options;
  options.instruction_set = InstructionSet::sse2;
  if (!detail::is_available(InstructionSet::sse2, active_instruction_set())) {
    GTEST_SKIP() << "not an x86";
  }
  const Sizes sizes = bit_sizes()[1];
  const Inputs<float> in(sizes, 92);
  const Results<float> sse2 = run(in, no_mask(), options);
  options.instruction_set = InstructionSet::generic;
  expect_same(run(in, no_mask(), options), sse2, "sse2");
  options.instruction_set = InstructionSet::best;
  const Results<float> best = run(in, no_mask(), options);
  options.instruction_set = active_instruction_set();
  expect_same(run(in, no_mask(), options), best, "best");
}

/// Keys and values as T against the same numbers as float, for every row count around the forms'
/// limits.
template <class T>
void expect_the_bits_of_float_storage() {
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    for (const Index queries : {1, 2, 3, 4, 7, 15, 16, 31, 33}) {
      for (const Index dim : {1, 7, 16, 40, 65}) {
        Tensor4Buffer<float> q({1, 2, queries, dim}), out(q.shape()), expected(q.shape());
        Tensor4Buffer<T> k({1, 2, 133, dim}), v(k.shape());
        Tensor4Buffer<float> wide_k(k.shape()), wide_v(v.shape());
        for (Index i = 0; i < q.size(); ++i) {
          q.data()[i] = static_cast<float>(test::uniform(1, static_cast<std::uint64_t>(i)));
        }
        for (Index i = 0; i < k.size(); ++i) {
          const auto n = static_cast<std::uint64_t>(i);
          k.data()[i] = test::to<T>(test::uniform(2, n));
          v.data()[i] = test::to<T>(test::uniform(3, n));
          wide_k.data()[i] = static_cast<float>(k.data()[i]);
          wide_v.data()[i] = static_cast<float>(v.data()[i]);
        }
        scaled_dot_product_attention(q, k, v, out, no_mask(), options);
        scaled_dot_product_attention(q, wide_k, wide_v, expected, no_mask(), options);
        EXPECT_TRUE(same_bits(std::as_const(out).view(), std::as_const(expected).view()))
            << queries << " queries, dim " << dim << ", " << name_of(set);
      }
    }
  }
}

// 16-bit rows are read in place or converted first, by the number of rows: never with other sums.
TEST(Bits, KeysAndValuesOf16BitsAreTheFloatsTheyStandFor) {
  expect_the_bits_of_float_storage<half>();
  expect_the_bits_of_float_storage<bfloat16>();
}

// A sum of which only a vanishing negative term is left is -0, until any key of weight 0 is added:
// a dropped key would show in the sign.
TEST(Bits, AVanishedSumHasNoSign) {
  for (const Index queries : {1, 20}) {
    Tensor4Buffer<float> q({1, 1, queries, 1}), k({1, 1, 3, 1}), v({1, 1, 3, 1});
    for (Index i = 0; i < queries; ++i) q.view()(0, 0, i, 0) = 1;
    k.view()(0, 0, 1, 0) = -20;
    v.view()(0, 0, 1, 0) = -std::numeric_limits<float>::denorm_min();
    v.view()(0, 0, 2, 0) = 1;
    const bool keep[] = {true, true, false};
    const auto by_length = scaled_dot_product_attention(q, k, v, key_lengths(2));
    const auto by_tensor = scaled_dot_product_attention(
        q, k, v, keep_where(Tensor4<const bool>(keep, Shape4{1, 1, 1, 3})));
    EXPECT_TRUE(same_bits(by_length.output.view(), by_tensor.output.view())) << queries;
    EXPECT_TRUE(same_bits(by_length.output.view()(0, 0, 0, 0), 0.0f)) << queries;
  }
}

}  // namespace
}  // namespace attn

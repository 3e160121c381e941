// Line 16 of the contract: bits do not depend on strides, on other rows, or on what else is
// computed.
#include <gtest/gtest.h>

#include <vector>

#include "attention_bits_test/bits_of.hpp"
#include "attn/attention.hpp"
#include "support/full_call.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::expect_same;
using test::FullCall;
using test::Inputs;
using test::Layout;
using test::Results;
using test::run;
using test::same_bits;
using test::Sizes;

TYPED_TEST(BitsOf, DoNotDependOnTheLayout) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 83);
    const Results<TypeParam> expected = run(in, call.mask(), call.options);
    for (const Layout a : test::kAllLayouts) {
      expect_same(run(Inputs<TypeParam>(sizes, 83, a), call.mask(), call.options, a), expected,
                  "all tensors in one layout");
      // Each tensor in another.
      const auto other = [&](int shift) {
        return test::kAllLayouts[(static_cast<int>(a) + shift) % 7];
      };
      const Inputs<TypeParam> mixed(sizes, 83, a, other(2), other(3));
      expect_same(run(mixed, call.mask(), call.options, other(5)), expected,
                  "tensors in different layouts");
    }
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheBatchSize) {
  for (Sizes sizes : bit_sizes()) {
    sizes.batch = 3;
    const FullCall call(sizes, false);
    const Inputs<TypeParam> in(sizes, 85);
    const Results<TypeParam> all = run(in, call.mask(), call.options);
    Sizes one = sizes;
    one.batch = 1;
    const FullCall single(one, false);
    for (Index b = 0; b < 3; ++b) {
      Results<TypeParam> results(one);
      scaled_dot_product_attention(in.q.view().slice_batch(b, 1), in.k.view().slice_batch(b, 1),
                                   in.v.view().slice_batch(b, 1), results.out.view(), single.mask(),
                                   single.options, results.extra());
      EXPECT_TRUE(same_bits(results.out.view(), all.out.view().slice_batch(b, 1)));
      EXPECT_TRUE(same_bits(results.weights.view(), all.weights.view().slice_batch(b, 1)));
      EXPECT_TRUE(same_bits(results.log_sum_exp.view(), all.log_sum_exp.view().slice_batch(b, 1)));
    }
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheNumberOfGroups) {
  const Sizes shapes[] = {
      {1, 6, 3, 3, 3, 37, 9, 6}, {1, 6, 3, 3, 31, 150, 20, 33}, {1, 6, 3, 3, 2, 4200, 4, 5}};
  for (const Sizes& sizes : shapes) {
    const FullCall call(sizes, false);
    const Inputs<TypeParam> in(sizes, 86);
    const Results<TypeParam> all = run(in, call.mask(), call.options);
    Sizes one = sizes;
    one.query_heads = 2;
    one.key_heads = one.value_heads = 1;
    const FullCall single(one, false);
    for (Index group = 0; group < 3; ++group) {
      Results<TypeParam> results(one);
      scaled_dot_product_attention(in.q.view().slice_heads(2 * group, 2),
                                   in.k.view().slice_heads(group, 1),
                                   in.v.view().slice_heads(group, 1), results.out.view(),
                                   single.mask(), single.options, results.extra());
      EXPECT_TRUE(same_bits(results.out.view(), all.out.view().slice_heads(2 * group, 2)));
      EXPECT_TRUE(same_bits(results.weights.view(), all.weights.view().slice_heads(2 * group, 2)));
      EXPECT_TRUE(
          same_bits(results.log_sum_exp.view(), all.log_sum_exp.view().slice_heads(2 * group, 2)));
    }
  }
}

TYPED_TEST(BitsOf, DoNotDependOnWhatIsAskedFor) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 87);
    const Results<TypeParam> expected = run(in, call.mask(), call.options);
    for (int bits = 0; bits < 3; ++bits) {
      Results<TypeParam> results(sizes);
      auto extra = results.extra();
      if ((bits & 1) == 0) extra.weights = {};
      if ((bits & 2) == 0) extra.log_sum_exp = {};
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out.view(),
                                   call.mask(), call.options, extra);
      EXPECT_TRUE(same_bits(results.out.view(), expected.out.view()));
      if ((bits & 1) == 0) {
        EXPECT_TRUE(results.weights.is_untouched());
      } else {
        EXPECT_TRUE(same_bits(results.weights.view(), expected.weights.view()));
      }
      if ((bits & 2) == 0) {
        EXPECT_TRUE(results.log_sum_exp.is_untouched());
      } else {
        EXPECT_TRUE(same_bits(results.log_sum_exp.view(), expected.log_sum_exp.view()));
      }
    }
  }
}

// Whatever the other rows hold - other numbers, huge ones, infinity, NaN - one row keeps its bits.
TYPED_TEST(BitsOf, DoNotDependOnOtherRows) {
  using T = TypeParam;
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<T> in(sizes, 88);
    const Results<T> expected = run(in, call.mask(), call.options);
    const Index kept[][2] = {
        {0, 0}, {sizes.query_heads - 1, sizes.query_length - 1}, {1, sizes.query_length / 2}};
    for (const T other : {test::to<T>(0), test::to<T>(6e4), test::infinity<T>(),
                          -test::infinity<T>(), test::quiet_nan<T>()}) {
      for (const auto& place : kept) {
        const Index head = place[0], query = place[1];  // bindings cannot be captured
        Inputs<T> changed = in;
        test::for_each_index(sizes.q(), [&](Index b, Index h, Index i, Index d) {
          if (h != head || i != query) changed.q(b, h, i, d) = other;
        });
        const Results<T> results = run(changed, call.mask(), call.options);
        for (Index b = 0; b < sizes.batch; ++b) {
          const auto row = [&, h = head, i = query](const auto& tensor) {
            return tensor.view().slice_batch(b, 1).slice_heads(h, 1).slice_length(i, 1);
          };
          EXPECT_TRUE(same_bits(row(results.out), row(expected.out)));
          EXPECT_TRUE(same_bits(row(results.weights), row(expected.weights)));
          EXPECT_TRUE(same_bits(row(results.log_sum_exp), row(expected.log_sum_exp)));
        }
      }
    }
  }
}

// Equal queries give equal bits wherever they stand in the tiles.
TYPED_TEST(BitsOf, DoNotDependOnThePlaceOfTheRow) {
  for (const InstructionSet set : test::instruction_sets()) {
    for (const Sizes& sizes : bit_sizes()) {
      Inputs<TypeParam> in(sizes, 89);
      in.q.fill([&](Index, Index, Index, Index d) {
        return test::to<TypeParam>(3 * test::uniform(90, static_cast<std::uint64_t>(d)));
      });
      AttentionOptions options;
      options.instruction_set = set;
      const Results<TypeParam> r = run(in, no_mask(), options);
      const Index group = sizes.query_heads / sizes.key_heads;
      test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
        if (sizes.key_heads != sizes.value_heads) return;
        EXPECT_TRUE(same_bits(r.out(b, h, i, d), r.out(b, h / group * group, 0, d)))
            << name_of(set) << " (" << b << ", " << h << ", " << i << ", " << d << ")";
      });
      test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
        EXPECT_TRUE(
            same_bits(r.log_sum_exp(b, h, i, 0), r.log_sum_exp(b, h / group * group, 0, 0)));
      });
    }
  }
}

}  // namespace
}  // namespace attn

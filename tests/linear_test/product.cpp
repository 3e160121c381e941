// linear held to the sum by the book: element types, sizes, strides, bits, memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "attn/layers/linear.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/element_types.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::Layout;
using test::same_bits;
using test::TestTensor;

template <class T>
class LinearOf : public ::testing::Test {};
TYPED_TEST_SUITE(LinearOf, test::ElementTypes, test::TypeNames);

struct LinearSizes {
  Index batch, length, in, out;

  Shape4 x() const { return {batch, 1, length, in}; }
  Shape4 weight() const { return {1, 1, out, in}; }
  Shape4 y() const { return {batch, 1, length, out}; }
};

std::ostream& operator<<(std::ostream& stream, const LinearSizes& s) {
  return stream << "B " << s.batch << ", S " << s.length << ", in " << s.in << ", out " << s.out;
}

/// x, W and b of one product.
template <class X, class W = X>
struct Product {
  LinearSizes sizes;
  TestTensor<X> x;
  TestTensor<W> weight;
  TestTensor<W> bias;

  explicit Product(const LinearSizes& s, std::uint64_t seed = 1,
                   Layout x_layout = Layout::contiguous, Layout weight_layout = Layout::contiguous)
      : sizes(s), x(s.x(), x_layout), weight(s.weight(), weight_layout), bias({1, 1, 1, s.out}) {
    x.fill_uniform(3 * seed);
    weight.fill_uniform(3 * seed + 1);
    bias.fill_uniform(3 * seed + 2);
  }
  LinearWeights<W> weights(bool with_bias = true) const {
    return {weight.view(), with_bias ? bias.view().data() : nullptr};
  }
};

/// Holds every entry of y to its own bound. The sum of n products, one after the other, is off by
/// at most n u sum |x w| (n + 1 where a product is rounded before it is added; u = epsilon / 2 of
/// the type of the sums); depths of 512 are added up, and the bias once. One rounding to y's type.
template <class X, class W, class Y>
void expect_product(const Product<X, W>& p, bool with_bias, const TestTensor<Y>& y) {
  using A = AccumulationType<X, W, Y>;
  const Index in = p.sizes.in;
  const long double roundings = static_cast<long double>((std::min)(in, Index{512}) + 1 +
                                                         (in + 511) / 512 + (with_bias ? 1 : 0));
  int failures = 0;
  test::for_each_index(p.sizes.y(), [&](Index b, Index h, Index i, Index o) {
    long double sum = 0, magnitude = 0;
    for (Index d = 0; d < in; ++d) {
      const long double term = test::widen(p.x(b, h, i, d)) * test::widen(p.weight(0, 0, o, d));
      sum += term;
      magnitude += std::abs(term);
    }
    if (with_bias) {
      sum += test::widen(p.bias(0, 0, 0, o));
      magnitude += std::abs(test::widen(p.bias(0, 0, 0, o)));
    }
    const long double bar = roundings * test::epsilon<A>() / 2 * magnitude;
    const long double smallest = test::widen((std::numeric_limits<Y>::denorm_min)());
    const long double rounding =
        (std::max)(test::epsilon<Y>() * (std::abs(sum) + bar), smallest) / 2;
    const long double error = std::abs(test::widen(y(b, h, i, o)) - sum);
    if (!(error <= bar + rounding) && ++failures <= 3) {
      ADD_FAILURE() << "(" << b << ", " << i << ", " << o << ") is " << test::widen(y(b, h, i, o))
                    << ", the sum " << sum << ": off by " << error << ", allowed "
                    << bar + rounding;
    }
  });
  EXPECT_EQ(failures, 0) << "of " << p.sizes.y().size();
  EXPECT_TRUE(y.gaps_are_untouched());
}

template <class Y, class X, class W>
TestTensor<Y> multiply(const Product<X, W>& p, bool with_bias = true,
                       const LinearOptions& options = {}, Layout layout = Layout::contiguous) {
  TestTensor<Y> y(p.sizes.y(), layout);
  linear(p.x.view(), p.weights(with_bias), y.view(), options);
  return y;
}

/// With each instruction set.
template <class Y, class X, class W>
void check(const Product<X, W>& p, bool with_bias = true, Layout layout = Layout::contiguous) {
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(::testing::Message() << p.sizes << " " << name_of(set));
    LinearOptions options;
    options.instruction_set = set;
    expect_product(p, with_bias, multiply<Y>(p, with_bias, options, layout));
  }
}

// Both sides of 16 tokens (where the form changes), of each row tile (16, 24, 48 tokens), and of a
// block of them; distinct sizes.
TYPED_TEST(LinearOf, EveryNumberOfTokens) {
  for (const Index length : {1, 2, 4, 5, 15, 16, 17, 23, 25, 47, 48, 49, 63, 65, 97, 193}) {
    check<TypeParam>(Product<TypeParam>({2, length, 7, 5}, 1));
  }
}

TYPED_TEST(LinearOf, EveryInputDim) {
  for (const Index in : {1, 2, 3, 8, 15, 16, 17, 33, 127, 511, 512, 513, 1025}) {
    for (const Index length : {3, 18}) check<TypeParam>(Product<TypeParam>({1, length, in, 6}, 2));
  }
}

// Both sides of the rows of W that are fetched together (64) and that are an item (128).
TYPED_TEST(LinearOf, EveryOutputDim) {
  for (const Index out : {1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    for (const Index length : {3, 18}) {
      check<TypeParam>(Product<TypeParam>({1, length, 5, out}, 3));
      check<TypeParam>(Product<TypeParam>({1, length, 5, out}, 3), false);
    }
  }
}

// So wide that few rows of W make an item.
TEST(Linear, WideInputs) {
  for (const Index length : {2, 17}) {
    check<float>(Product<float>({1, length, 9000, 13}, 4));
    check<half>(Product<half>({1, length, 9000, 13}, 4));
  }
}

TYPED_TEST(LinearOf, EveryLayout) {
  for (const Layout layout : test::kAllLayouts) {
    for (const Index length : {3, 18}) {
      const LinearSizes sizes{2, length, 20, 11};
      check<TypeParam>(Product<TypeParam>(sizes, 5, layout, layout), true, layout);
      check<TypeParam>(Product<TypeParam>(sizes, 5, layout));
      check<TypeParam>(Product<TypeParam>(sizes, 5, Layout::contiguous, layout));
    }
  }
}

template <class X, class W, class Y>
void check_mixed() {
  SCOPED_TRACE(std::string(test::name_of_type<X>()) + " " + test::name_of_type<W>() + " " +
               test::name_of_type<Y>());
  for (const Index length : {3, 18}) check<Y>(Product<X, W>({1, length, 40, 9}, 6));
}

TEST(Linear, ElementTypesMayDiffer) {
  check_mixed<float, half, double>();
  check_mixed<double, float, half>();
  check_mixed<half, double, bfloat16>();
  check_mixed<bfloat16, half, float>();
  check_mixed<half, bfloat16, half>();
}

// 4096 ones: a sum held in 16 bits would stop at 256 (bfloat16) or 2048 (half).
TEST(Linear, SumsAreNotHeldIn16Bits) {
  for (const Index length : {1, 16}) {
    TestTensor<bfloat16> x({1, 1, length, 4096}), w({1, 1, 1, 4096}), y({1, 1, length, 1});
    x.fill_value(bfloat16(1.0f));
    w.fill_value(bfloat16(1.0f));
    linear(x.view(), LinearWeights<bfloat16>{w.view()}, y.view());
    EXPECT_EQ(static_cast<float>(y(0, 0, length - 1, 0)), 4096.0f);
  }
}

// 2048 + 1 is a tie in half and rounds to 2048; with the bias 1 the sum is 2050, which half has.
TEST(Linear, RoundsOnceWithTheBias) {
  for (const Index length : {1, 16}) {
    TestTensor<half> x({1, 1, length, 2}), w({1, 1, 1, 2}), y({1, 1, length, 1});
    x.fill([](Index, Index, Index, Index d) { return d == 0 ? 2048.0f : 1.0f; });
    w.fill_value(half(1.0f));
    const half one(1.0f);
    linear(x.view(), LinearWeights<half>{w.view(), &one}, y.view());
    EXPECT_EQ(static_cast<float>(y(0, 0, 0, 0)), 2050.0f);
  }
}

TEST(Linear, SizesOfZero) {
  for (const Index length : {3, 18}) {
    Product<float> no_input({2, length, 0, 5}, 7);
    const TestTensor<float> y = multiply<float>(no_input);
    test::for_each_index(y.shape(), [&](Index b, Index h, Index i, Index o) {
      EXPECT_TRUE(same_bits(y(b, h, i, o), no_input.bias(0, 0, 0, o)));
    });
    const TestTensor<float> zeros = multiply<float>(no_input, false);
    test::for_each_index(zeros.shape(), [&](Index b, Index h, Index i, Index o) {
      EXPECT_TRUE(same_bits(zeros(b, h, i, o), 0.0f));
    });
    EXPECT_TRUE(multiply<float>(Product<float>({0, length, 4, 5})).is_untouched());
    EXPECT_TRUE(multiply<float>(Product<float>({2, length, 4, 0})).is_untouched());
  }
  EXPECT_TRUE(multiply<float>(Product<float>({2, 0, 4, 5})).is_untouched());
}

// NaN and infinity reach their own token, in the outputs whose weight is not 0 times infinity.
TEST(Linear, NotFiniteInputsStayInTheirToken) {
  for (const Index length : {4, 20}) {
    Product<float> p({1, length, 9, 70}, 8);
    const TestTensor<float> clean = multiply<float>(p);
    p.x(0, 0, 1, 3) = test::quiet_nan<float>();
    p.x(0, 0, 2, 8) = test::infinity<float>();
    const TestTensor<float> y = multiply<float>(p);
    test::for_each_index(y.shape(), [&](Index b, Index h, Index i, Index o) {
      const float value = y(b, h, i, o);
      if (i == 1) {
        EXPECT_TRUE(std::isnan(value));
      } else if (i == 2) {
        EXPECT_EQ(value,
                  p.weight(0, 0, o, 8) > 0 ? test::infinity<float>() : -test::infinity<float>());
      } else {
        EXPECT_TRUE(same_bits(value, clean(b, h, i, o)));
      }
    });
  }
}

// ---- What bits may depend on.

const LinearSizes kBitSizes[] = {{3, 5, 70, 300}, {2, 130, 600, 150}, {40, 1, 33, 9}};

TYPED_TEST(LinearOf, BitsDoNotDependOnTheExecutor) {
  for (const LinearSizes& sizes : kBitSizes) {
    const Product<TypeParam> p(sizes, 11);
    const TestTensor<TypeParam> expected = multiply<TypeParam>(p);
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      LinearOptions options;
      options.executor = &pool;
      EXPECT_TRUE(same_bits(multiply<TypeParam>(p, true, options).view(), expected.view()))
          << sizes << " with " << threads << " threads";
    }
  }
}

TYPED_TEST(LinearOf, BitsDoNotDependOnStrides) {
  for (const LinearSizes& sizes : kBitSizes) {
    const TestTensor<TypeParam> expected = multiply<TypeParam>(Product<TypeParam>(sizes, 12));
    for (const Layout layout : test::kAllLayouts) {
      const Product<TypeParam> p(sizes, 12, layout, layout);
      EXPECT_TRUE(same_bits(multiply<TypeParam>(p, true, {}, layout).view(), expected.view()))
          << sizes;
    }
  }
}

// Each sequence alone gives what it gives in the batch, and so does each with other neighbours.
TYPED_TEST(LinearOf, BitsDoNotDependOnOtherTokens) {
  for (const LinearSizes& sizes : kBitSizes) {
    Product<TypeParam> p(sizes, 13);
    const TestTensor<TypeParam> all = multiply<TypeParam>(p);
    for (Index b = 0; b < sizes.batch; ++b) {
      TestTensor<TypeParam> alone({1, 1, sizes.length, sizes.out});
      linear(p.x.view().slice_batch(b, 1), p.weights(), alone.view());
      EXPECT_TRUE(same_bits(alone.view(), all.view().slice_batch(b, 1))) << sizes;
    }
    const Index kept = sizes.length / 2;
    test::for_each_index(p.x.shape(), [&](Index b, Index h, Index i, Index d) {
      if (i != kept) p.x(b, h, i, d) = test::quiet_nan<TypeParam>();
    });
    EXPECT_TRUE(same_bits(multiply<TypeParam>(p).view().slice_length(kept, 1),
                          all.view().slice_length(kept, 1)))
        << sizes;
  }
}

// ---- Weights.

// x W with W in (in x out) memory, and a part of a fused weight.
TEST(LinearWeights, AreViews) {
  const LinearSizes sizes{1, 4, 6, 5};
  const Product<float> p(sizes, 14);
  const TestTensor<float> expected = multiply<float>(p);

  std::vector<float> in_by_out;
  for (Index d = 0; d < sizes.in; ++d) {
    for (Index o = 0; o < sizes.out; ++o) in_by_out.push_back(p.weight(0, 0, o, d));
  }
  TestTensor<float> y(sizes.y());
  linear(p.x.view(),
         LinearWeights<float>{
             Tensor4<const float>(in_by_out.data(), sizes.weight(), {0, 0, 1, sizes.out}),
             p.bias.view().data()},
         y.view());
  EXPECT_TRUE(same_bits(y.view(), expected.view()));

  // Rows and biases of another layer before and behind.
  TestTensor<float> fused({1, 1, 3 * sizes.out, sizes.in}), biases({1, 1, 1, 3 * sizes.out});
  fused.fill([&](Index, Index, Index o, Index d) {
    return o / sizes.out == 1 ? p.weight(0, 0, o - sizes.out, d) : 100;
  });
  biases.fill([&](Index, Index, Index, Index o) {
    return o / sizes.out == 1 ? p.bias(0, 0, 0, o - sizes.out) : 100;
  });
  TestTensor<float> part(sizes.y());
  linear(p.x.view(),
         LinearWeights<float>{fused.view().slice_length(sizes.out, sizes.out),
                              biases.view().data() + sizes.out},
         part.view());
  EXPECT_TRUE(same_bits(part.view(), expected.view()));
}

// ---- Memory.

TEST(LinearMemory, IsOneAllocationWhateverTheNumberOfTokens) {
  const auto bytes_of = [](auto element, Index length) {
    using T = decltype(element);
    const Product<T> p({1, length, 700, 300});
    TestTensor<T> y(p.sizes.y());
    test::allocations().reset();
    linear(p.x.view(), p.weights(), y.view());
    EXPECT_EQ(test::allocations().count, 1u);
    return test::allocations().bytes.load();
  };
  const std::size_t bytes = bytes_of(half(), 500);
  EXPECT_EQ(bytes, bytes_of(half(), 1000));
  EXPECT_LT(bytes, std::size_t{2} << 20);
  EXPECT_LT(bytes_of(double(), 500), std::size_t{2} << 20);
  EXPECT_LT(bytes_of(half(), 1), std::size_t{1} << 20);
}

}  // namespace
}  // namespace attn

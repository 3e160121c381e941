// Attention over parts of the keys, merged: the attention over all of them.
#include "attn/merge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/element_types.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using Eigen::half;
using test::infinity;
using test::Inputs;
using test::Layout;
using test::message_of;
using test::quiet_nan;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

template <class T>
class MergeOf : public ::testing::Test {};
TYPED_TEST_SUITE(MergeOf, test::AccumulationTypes, test::TypeNames);

// Parts of any sizes, empty ones too, merged one after the other in place; one holds the sink.
TYPED_TEST(MergeOf, PartsAreTheWhole) {
  using T = TypeParam;
  for (const Index queries : {2, 19}) {
    const Sizes sizes{2, 4, 2, 2, queries, 40, 6, 5};
    const Inputs<T> in(sizes, 111);
    const std::vector<double> sinks = {0.5, -2, 3, -infinity<double>()};
    for (const std::vector<Index>& ends :
         std::vector<std::vector<Index>>{{40}, {13, 40}, {0, 40}, {1, 2, 2, 39, 40}, {40, 40}}) {
      for (const std::size_t sink_part : {std::size_t{0}, ends.size() - 1, std::size_t{99}}) {
        TestTensor<T> out(sizes.out(), Layout::padded), part_out(sizes.out(), Layout::bshd);
        TestTensor<T> lse(sizes.rows(), Layout::permuted), part_lse(sizes.rows());
        Index begin = 0;
        for (std::size_t part = 0; part < ends.size(); ++part) {
          AttentionOptions options;
          if (part == sink_part) options.sinks = sinks;
          const Index count = ends[part] - begin;
          const auto keys = in.k.view().slice_length(begin, count);
          const auto values = in.v.view().slice_length(begin, count);
          scaled_dot_product_attention(in.q.view(), keys, values,
                                       part == 0 ? out.view() : part_out.view(), no_mask(), options,
                                       {{}, part == 0 ? lse.view() : part_lse.view()});
          if (part > 0) {
            merge_attention(out.view(), lse.view(), part_out.view(), part_lse.view(), out.view(),
                            lse.view());
          }
          begin = ends[part];
        }
        AttentionOptions options;
        if (sink_part < ends.size()) options.sinks = sinks;
        TestTensor<T> whole(sizes.out()), whole_lse(sizes.rows());
        scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), whole.view(), no_mask(),
                                     options, {{}, whole_lse.view()});
        // Each merge adds 4 epsilon, each part its own rounding, of numbers below 1 and scores
        // below 3 * sqrt(6).
        const long double steps = static_cast<long double>(ends.size());
        const long double bar = test::epsilon<T>() * (4 * steps + 2 * (6 + 3 * 7.4L));
        test::expect_within("out", out.view(), whole.view(), bar);
        test::expect_within("log_sum_exp", lse.view(), whole_lse.view(), bar);
        EXPECT_TRUE(out.gaps_are_untouched());
        EXPECT_TRUE(lse.gaps_are_untouched());
      }
    }
  }
}

/// One row of one column.
struct Part {
  double out, lse;
};
template <class T = double>
Part merge(Part a, Part b) {
  T out_a = test::to<T>(a.out), out_b = test::to<T>(b.out), out = 0;
  T lse_a = test::to<T>(a.lse), lse_b = test::to<T>(b.lse), lse = 0;
  const Shape4 one{1, 1, 1, 1};
  merge_attention(Tensor4<const T>(&out_a, one), Tensor4<const T>(&lse_a, one),
                  Tensor4<const T>(&out_b, one), Tensor4<const T>(&lse_b, one),
                  Tensor4<T>(&out, one), Tensor4<T>(&lse, one));
  return {static_cast<double>(out), static_cast<double>(lse)};
}

TEST(Merge, WeighsByTheDenominators) {
  const Part both = merge({1, std::log(3.0)}, {5, std::log(1.0)});
  EXPECT_NEAR(both.out, 2, 1e-15);
  EXPECT_NEAR(both.lse, std::log(4.0), 1e-15);
  EXPECT_EQ(merge({1, 1e30}, {3, 1e30}).out, 2);
  EXPECT_EQ(merge({1, -1e30}, {3, -1e30}).out, 2);
  EXPECT_EQ(merge({1, -1e30}, {3, 1e30}).out, 3);
  EXPECT_EQ(merge<float>({1, -3e38}, {3, 3e38}).out, 3);
  // A part far below still counts: e^-60 of 1e30.
  const double far = std::exp(-60.0);
  EXPECT_NEAR(merge({1e30, 0}, {0, 60}).out, 1e30 * far / (1 + far), 1e30 * far * 1e-13);
}

TEST(Merge, APartWithoutKeysChangesNothing) {
  const double none = -infinity<double>();
  for (const double garbage : {0.0, quiet_nan<double>(), infinity<double>()}) {
    for (const double lse : {0.0, 0.1, -1e30, 700.0}) {
      const Part right = merge({garbage, none}, {0.1, lse}),
                 left = merge({0.1, lse}, {garbage, none});
      EXPECT_TRUE(same_bits(right.out, 0.1));
      EXPECT_TRUE(same_bits(left.out, 0.1));
      EXPECT_EQ(right.lse, lse);
      EXPECT_EQ(left.lse, lse);
    }
    const Part empty = merge({garbage, none}, {garbage, none});
    EXPECT_TRUE(same_bits(empty.out, 0.0));
    EXPECT_EQ(empty.lse, none);
  }
}

TEST(Merge, ASinkAloneIsAPart) {
  // A part whose rows have a sink and no key: out 0, lse the sink.
  const Part both = merge({0, std::log(4.0)}, {1, std::log(4.0)});
  EXPECT_NEAR(both.out, 0.5, 1e-15);
  EXPECT_NEAR(both.lse, std::log(8.0), 1e-15);
}

TEST(Merge, NanAndInfinityAreData) {
  const double nan = quiet_nan<double>(), inf = infinity<double>(), none = -inf;
  EXPECT_TRUE(std::isnan(merge({nan, 0}, {1, 0}).out));
  EXPECT_TRUE(std::isnan(merge({1, 0}, {nan, 0}).out));
  EXPECT_EQ(merge({inf, 0}, {1, 0}).out, inf);
  // A row that is NaN has a log-sum-exp that is NaN, on either side and next to any other.
  for (const double other : {0.0, none, 1e30}) {
    EXPECT_TRUE(std::isnan(merge({nan, nan}, {1, other}).out));
    EXPECT_TRUE(std::isnan(merge({1, other}, {nan, nan}).out));
    EXPECT_TRUE(std::isnan(merge({nan, nan}, {1, other}).lse));
    EXPECT_TRUE(std::isnan(merge({1, other}, {nan, nan}).lse));
  }
}

TEST(Merge, TypesMayDiffer) {
  const Shape4 shape{1, 2, 3, 4}, rows{1, 2, 3, 1};
  TestTensor<half> out_a(shape), out(shape);
  TestTensor<float> lse_a(rows), lse_b(rows);
  TestTensor<double> out_b(shape), lse(rows);
  out_a.fill_uniform(1);
  out_b.fill_uniform(2);
  lse_a.fill_uniform(3);
  lse_b.fill_uniform(4);
  merge_attention(out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out.view(), lse.view());
  test::for_each_index(shape, [&](Index b, Index h, Index i, Index d) {
    const double a = std::exp(static_cast<double>(lse_a(b, h, i, 0))),
                 c = std::exp(static_cast<double>(lse_b(b, h, i, 0)));
    const double expected =
        (a * static_cast<double>(test::widen(out_a(b, h, i, d))) + c * out_b(b, h, i, d)) / (a + c);
    EXPECT_TRUE(same_bits(out(b, h, i, d), test::to<half>(expected)));
    EXPECT_NEAR(lse(b, h, i, 0), std::log(a + c), 1e-15);
  });
}

TEST(Merge, BuffersAndEmptyShapesAreLegal) {
  Tensor4Buffer<float> a({1, 0, 3, 4}), lse({1, 0, 3, 1}), b({1, 2, 3, 0}), lse_b({1, 2, 3, 1});
  merge_attention(a, lse, a, lse, a, lse);
  std::fill_n(lse_b.data(), lse_b.size(), 1.0f);
  Tensor4Buffer<float> merged({1, 2, 3, 1});
  merge_attention(b, lse_b, b, lse_b, b, merged);
  EXPECT_NEAR(merged(0, 1, 2, 0), 1 + std::log(2.0), 1e-6);
}

TEST(Merge, RefusesWhatDoesNotFit) {
  std::vector<float> memory(600);
  const auto out_at = [&](Index place) {
    return Tensor4<float>(memory.data() + place, {1, 2, 3, 4});
  };
  const auto lse_at = [&](Index place) {
    return Tensor4<float>(memory.data() + place, {1, 2, 3, 1});
  };
  const auto error_of = [&](auto oa, auto la, auto ob, auto lb, auto o, auto l) {
    const std::string text = message_of<ShapeError>([&] { merge_attention(oa, la, ob, lb, o, l); });
    for (const float x : memory) EXPECT_EQ(x, 0);
    return text;
  };
  const Tensor4<float> other(memory.data(), {1, 2, 4, 3});
  EXPECT_EQ(error_of(out_at(0), lse_at(100), other, lse_at(200), out_at(300), lse_at(400)),
            "merge_attention: out_a and out_b must have the shape of out; got out_a [1, 2, 3, 4], "
            "lse_a [1, 2, 3, 1], out_b [1, 2, 4, 3], lse_b [1, 2, 3, 1], out [1, 2, 3, 4], lse [1, "
            "2, 3, 1]");
  EXPECT_EQ(error_of(out_at(0), out_at(100), out_at(200), lse_at(250), out_at(300), lse_at(400)),
            "merge_attention: lse_a, lse_b and lse must be [batch, heads, length of out, 1]; got "
            "out_a [1, 2, 3, 4], lse_a [1, 2, 3, 4], out_b [1, 2, 3, 4], lse_b [1, 2, 3, 1], out "
            "[1, 2, 3, 4], lse [1, 2, 3, 1]");
  // Overlaps, but for out and lse being exactly out_a and lse_a.
  const auto rule_of = [&](auto... arguments) {
    const std::string text = error_of(arguments...);
    return text.substr(0, text.find(';'));
  };
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(1), lse_at(400)),
            "merge_attention: out overlaps out_a in memory");
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(150), lse_at(400)),
            "merge_attention: out overlaps out_b in memory");
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(0), lse_at(200)),
            "merge_attention: lse overlaps lse_b in memory");
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(0), lse_at(101)),
            "merge_attention: lse overlaps lse_a in memory");
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(300), lse_at(0)),
            "merge_attention: lse overlaps out_a in memory");
  EXPECT_EQ(rule_of(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(100), lse_at(100)),
            "merge_attention: lse overlaps out in memory");
  EXPECT_NO_THROW(
      merge_attention(out_at(0), lse_at(100), out_at(150), lse_at(200), out_at(0), lse_at(100)));
}

TEST(Merge, TakesArgumentsOfDifferentTypes) {
  Tensor4Buffer<Eigen::half> out_a({1, 1, 1, 1});
  Tensor4Buffer<double> out_b({1, 1, 1, 1}), lse({1, 1, 1, 1});
  Tensor4Buffer<float> lse_a({1, 1, 1, 1}), out({1, 1, 1, 1});
  Tensor4Buffer<Eigen::bfloat16> lse_b({1, 1, 1, 1});
  out_a(0, 0, 0, 0) = Eigen::half(1.0f);
  out_b(0, 0, 0, 0) = 4;
  merge_attention(out_a, lse_a, out_b, lse_b, out, lse);  // equal weights
  EXPECT_EQ(out(0, 0, 0, 0), 2.5f);
  EXPECT_NEAR(lse(0, 0, 0, 0), std::log(2.0), 1e-15);
}

}  // namespace
}  // namespace attn

// Scale, softcap, sinks and dropout, held to attention by the book.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attn/attention.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::expect_attention;
using test::Formula;
using test::Inputs;
using test::Sizes;
using test::TestTensor;

/// Both forms, small and with several key tiles.
std::vector<Sizes> option_sizes() {
  return {{2, 4, 2, 4, 3, 10, 5, 4}, {1, 4, 2, 4, 21, 140, 5, 4}};
}

TEST(Options, ScaleOfAnySign) {
  for (const double scale : {0.0, -0.0, 1.0, -0.7, 3.5, 1e-30}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.scale = scale;
      expect_attention<float>(Inputs<float>(sizes, 41), no_mask(), Formula{}, options);
      expect_attention<double>(Inputs<double>(sizes, 41), no_mask(), Formula{}, options);
    }
  }
}

TEST(Options, TheDefaultScaleIsThatOfTheKeyDim) {
  Tensor4Buffer<float> q({1, 1, 1, 4}), k({1, 1, 2, 4}), v({1, 1, 2, 1}), out({1, 1, 1, 1});
  q(0, 0, 0, 0) = 2;
  k(0, 0, 0, 0) = 1;
  v(0, 0, 0, 0) = 1;
  scaled_dot_product_attention(q, k, v, out);
  EXPECT_NEAR(out(0, 0, 0, 0), 1 / (1 + std::exp(-1.0)), 1e-7);
}

TEST(Options, SoftcapComesBeforeBiasesAndMasks) {
  for (const double softcap : {0.5, 2.0, 30.0, 1e4}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.softcap = softcap;
      TestTensor<float> bias(sizes.scores());
      bias.fill_uniform(42, 3);
      const Formula formula = test::keeps([](Index, Index, Index, Index j) { return j < 9; }) &
                              test::changes([&](auto score, Index b, Index h, Index i, Index j) {
                                return score + static_cast<decltype(score)>(bias(b, h, i, j));
                              });
      Inputs<float> in(sizes, 43);
      expect_attention<float>(in, no_mask(), Formula{}, options);
      expect_attention<float>(in, add_bias(bias.view()) & key_lengths(9), formula, options);
      expect_attention<double>(Inputs<double>(sizes, 43), no_mask(), Formula{}, options);
      // A padded tile must not come back to life: every score is far below -softcap.
      in.q.fill_value(-100);
      in.k.fill_value(1);
      expect_attention<float>(in, no_mask(), Formula{}, options);
    }
  }
}

TEST(Options, SinksJoinTheDenominator) {
  const std::vector<double> sinks = {0.3, -test::infinity<double>(), -40, 25};
  for (const Sizes& sizes : option_sizes()) {
    AttentionOptions options;
    options.sinks = sinks;
    expect_attention<float>(Inputs<float>(sizes, 44), no_mask(), Formula{}, options);
    expect_attention<bfloat16>(Inputs<bfloat16>(sizes, 44), no_mask(), Formula{}, options);
    expect_attention<double>(Inputs<double>(sizes, 44), causal_top_left(),
                             test::keeps([](Index, Index, Index i, Index j) { return j <= i; }),
                             options);
    // With rows that have no key of their own.
    expect_attention<float>(Inputs<float>(sizes, 44), causal_from(-2),
                            test::keeps([](Index, Index, Index i, Index j) { return j <= i - 2; }),
                            options);
  }
  // All sinks absent: no bit changes.
  const std::vector<double> none(4, -test::infinity<double>());
  const Sizes sizes = option_sizes()[0];
  const Inputs<float> in(sizes, 45);
  TestTensor<float> with(sizes.out()), without(sizes.out());
  AttentionOptions options;
  options.sinks = none;
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), with.view(), no_mask(),
                               options);
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), without.view());
  EXPECT_TRUE(test::same_bits(with.view(), without.view()));
}

TEST(Options, SinksAndSplitKeys) {
  const std::vector<double> sinks = {8, -1};
  AttentionOptions options;
  options.sinks = sinks;
  for (const Index queries : {2, 12}) {
    const Sizes sizes{1, 2, 1, 1, queries, 8300, 3, 2};
    const Index offset = sizes.key_length - queries;
    expect_attention<float>(Inputs<float>(sizes, 46), no_mask(), Formula{}, options);
    // The sink counts once, also where the first split has no key.
    expect_attention<float>(Inputs<float>(sizes, 46), sliding_window(100, 0),
                            test::keeps([offset](Index, Index, Index i, Index j) {
                              return j >= i + offset - 100 && j <= i + offset;
                            }),
                            options);
  }
}

TEST(Options, DropoutHasTheReferencesBits) {
  for (const double p : {0.1, 0.3, 0.9, 1.0}) {
    for (const Sizes& sizes : option_sizes()) {
      AttentionOptions options;
      options.dropout = {p, 123, 456};
      expect_attention<float>(Inputs<float>(sizes, 47), no_mask(), Formula{}, options);
      expect_attention<half>(Inputs<half>(sizes, 47), causal_top_left(),
                             test::keeps([](Index, Index, Index i, Index j) { return j <= i; }),
                             options);
      expect_attention<double>(Inputs<double>(sizes, 47), no_mask(), Formula{}, options);
    }
  }
  // Keys that are split, a window that begins within a group of four keys.
  AttentionOptions options;
  options.dropout = {0.5, 1, 2};
  expect_attention<float>(Inputs<float>({1, 1, 1, 1, 2, 4500, 2, 2}, 48), sliding_window(450, 3),
                          test::keeps([](Index, Index, Index i, Index j) {
                            return j >= i + 4498 - 450 && j <= i + 4498 + 3;
                          }),
                          options);
}

TEST(Options, DropoutOfZeroAndOne) {
  const Sizes sizes = option_sizes()[1];
  const Inputs<float> in(sizes, 49);
  TestTensor<float> plain(sizes.out()), zero(sizes.out()), all(sizes.out());
  TestTensor<float> weights(sizes.scores());
  AttentionOptions options;
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), plain.view());
  options.dropout = {0, 5, 6};
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), zero.view(), no_mask(),
                               options);
  EXPECT_TRUE(test::same_bits(plain.view(), zero.view()));
  options.dropout = {1, 5, 6};
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), all.view(), no_mask(),
                               options, {weights.view(), {}});
  const Tensor4Buffer<float> zeros(sizes.out()), no_weights(sizes.scores());
  EXPECT_TRUE(test::same_bits(all.view(), zeros.view()));
  EXPECT_TRUE(test::same_bits(weights.view(), no_weights.view()));
}

// Seed, offset, batch and head all matter.
TEST(Options, DropoutDiffersEverywhere) {
  const Sizes sizes{2, 2, 1, 1, 4, 64, 0, 1};
  const Inputs<float> in(sizes);
  const auto weights_of = [&](Dropout dropout) {
    Tensor4Buffer<float> out(sizes.out()), weights(sizes.scores());
    AttentionOptions options;
    options.dropout = dropout;
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), no_mask(),
                                 options, {weights.view(), {}});
    return weights;
  };
  const Tensor4Buffer<float> base = weights_of({0.5, 1, 2});
  EXPECT_TRUE(test::same_bits(base.view(), weights_of({0.5, 1, 2}).view()));
  EXPECT_FALSE(test::same_bits(base.view(), weights_of({0.5, 2, 2}).view()));
  EXPECT_FALSE(test::same_bits(base.view(), weights_of({0.5, 1, 3}).view()));
  const Tensor4<const float> view = base.view();
  EXPECT_FALSE(test::same_bits(view.slice_batch(0, 1), view.slice_batch(1, 1)));
  EXPECT_FALSE(test::same_bits(view.slice_heads(0, 1), view.slice_heads(1, 1)));
  EXPECT_FALSE(test::same_bits(view.slice_length(0, 1), view.slice_length(1, 1)));
  for (const float w : Span<const float>(base.data(), base.size())) {
    EXPECT_TRUE(w == 0 || w == 2.0f / 64) << w;
  }
}

}  // namespace
}  // namespace attn

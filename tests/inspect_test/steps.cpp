// inspect_attention: the steps of one head, with the bits of the call.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attn/inspect.hpp"
#include "attn/thread_pool.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::for_each_index;
using test::infinity;
using test::Inputs;
using test::message_of;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Holds every batch and head's inspection to the bits of the whole call.
template <class T, class M>
void expect_bits_of_call(const Sizes& sizes, const M& mask, const AttentionOptions& options = {}) {
  SCOPED_TRACE(::testing::Message() << sizes);
  const Inputs<T> in(sizes);
  const auto call = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask,
                                                 options, Want::weights | Want::log_sum_exp);
  for (Index b = 0; b < sizes.batch; ++b) {
    for (Index h = 0; h < sizes.query_heads; ++h) {
      const auto look =
          inspect_attention(in.q.view(), in.k.view(), in.v.view(), b, h, mask, options);
      const auto of_head = [&](const auto& buffer) {
        return buffer.view().slice_batch(b, 1).slice_heads(h, 1);
      };
      EXPECT_TRUE(same_bits(look.weights.values.view(), of_head(call.weights)));
      EXPECT_TRUE(same_bits(look.log_sum_exp.view(), of_head(call.log_sum_exp)));
      for_each_index(look.output.values.shape(), [&](Index, Index, Index i, Index d) {
        EXPECT_TRUE(same_bits(test::to<T>(static_cast<double>(look.output.values(0, 0, i, d))),
                              call.output(b, h, i, d)));
      });
    }
  }
}

TEST(Inspect, HasTheBitsOfTheCallInPrefill) {
  expect_bits_of_call<float>({2, 4, 2, 1, 45, 130, 7, 6}, causal_bottom_right());
  expect_bits_of_call<double>({2, 3, 3, 3, 17, 17, 4, 5}, causal() & alibi());
  expect_bits_of_call<Eigen::half>({1, 2, 1, 2, 20, 33, 8, 8}, sliding_window(3, 2));
}

TEST(Inspect, HasTheBitsOfTheCallInDecoding) {
  expect_bits_of_call<float>({2, 8, 2, 4, 1, 300, 7, 6}, key_lengths(290));
  // Keys that are split and merged.
  expect_bits_of_call<float>({1, 4, 2, 2, 2, 9000, 5, 3}, causal_bottom_right());
  // Rows of the group are lanes, rows of one head alone would not be.
  expect_bits_of_call<float>({1, 8, 1, 1, 3, 40, 9, 5}, no_mask());
}

TEST(Inspect, HasTheBitsOfTheCallWithEveryOption) {
  const std::vector<double> sinks = {0.5, -1.0, 2.0, -kInfinity};
  AttentionOptions options;
  options.scale = 0.3;
  options.softcap = 1.5;
  options.dropout = {0.3, 7, 9};
  options.sinks = sinks;
  options.query_offset = 2;
  for (const InstructionSet set : test::instruction_sets()) {
    options.instruction_set = set;
    expect_bits_of_call<float>({2, 4, 2, 2, 19, 40, 6, 5}, causal(), options);
  }
  ThreadPool pool(2);
  options.executor = &pool;
  std::vector<char> memory(1 << 20);
  options.workspace = {memory.data(), 1};  // too small: an inspection does not use it
  const Inputs<float> in({2, 4, 2, 2, 19, 40, 6, 5});
  EXPECT_NO_THROW(
      inspect_attention(in.q.view(), in.k.view(), in.v.view(), 1, 2, causal(), options));
}

/// The steps of one head, each from the one before.
TEST(Inspect, StepsFollowTheFormula) {
  const Sizes sizes{2, 4, 2, 4, 5, 150, 7, 6};
  for (const Index query_length : {5, 40}) {  // both forms of tiles
    Sizes s = sizes;
    s.query_length = query_length;
    const Inputs<float> in(s);
    TestTensor<float> bias({1, 4, s.query_length, s.key_length});
    bias.fill_uniform(20);
    bias(0, 3, 2, 4) = -infinity<float>();
    AttentionOptions options;
    options.softcap = 2;
    options.query_offset = 90;
    const Index batch = 1, head = 3, key_head = 1;
    const auto look =
        inspect_attention(in.q.view(), in.k.view(), in.v.view(), batch, head,
                          causal() & add_bias(bias.view()) & key_lengths(95), options);
    EXPECT_EQ(look.key_head, key_head);
    EXPECT_EQ(look.value_head, head);
    EXPECT_EQ(look.query_offset, 90);
    EXPECT_EQ(look.scale, static_cast<float>(1 / std::sqrt(7.0)));

    Index absent_in_all = 0;
    for (Index i = 0; i < s.query_length; ++i) {
      double denominator = 0;
      Index absent = 0;
      for (Index j = 0; j < s.key_length; ++j) {
        double dot = 0, magnitude = 0;
        for (Index d = 0; d < s.key_dim; ++d) {
          const double product = static_cast<double>(in.q(batch, head, i, d)) *
                                 static_cast<double>(in.k(batch, key_head, j, d));
          dot += product;
          magnitude += std::abs(product);
        }
        // A sum of 7 products, each and each sum rounded once.
        EXPECT_NEAR(look.raw.values(0, 0, i, j), dot, 8 * magnitude * 0x1p-24);
        EXPECT_EQ(look.scaled.values(0, 0, i, j), look.scale * look.raw.values(0, 0, i, j));
        const double scaled = static_cast<double>(look.scaled.values(0, 0, i, j));
        // tanh is right to 4 epsilon; x / c and c * tanh are rounded.
        EXPECT_NEAR(look.softcapped.values(0, 0, i, j), 2 * std::tanh(scaled / 2),
                    6 * 0x1p-23 * std::abs(scaled));
        const float biased = look.softcapped.values(0, 0, i, j) + bias(0, head, i, j);
        EXPECT_TRUE(same_bits(look.biased.values(0, 0, i, j), biased));
        const bool seen = j <= i + 90 && j < 95 && !(i == 2 && j == 4);
        EXPECT_TRUE(same_bits(look.masked.values(0, 0, i, j), seen ? biased : -infinity<float>()))
            << i << ", " << j;
        if (seen) denominator += std::exp(static_cast<double>(biased));
        absent += seen ? 0 : 1;
      }
      EXPECT_EQ(look.masked_keys[static_cast<std::size_t>(i)], absent);
      absent_in_all += absent;

      // Errors of exp and of a sum of up to 95 terms.
      const double bar = 128 * 0x1p-23;
      EXPECT_NEAR(look.log_sum_exp(0, 0, i, 0), std::log(denominator), bar);
      EXPECT_NEAR(look.row_sums[static_cast<std::size_t>(i)], 1.0, bar);
      for (Index j = 0; j < s.key_length; ++j) {
        const double weight =
            std::exp(static_cast<double>(look.masked.values(0, 0, i, j))) / denominator;
        EXPECT_NEAR(look.weights.values(0, 0, i, j), weight, bar * weight);
      }
    }
    EXPECT_GT(absent_in_all, 0);
    EXPECT_TRUE(look.warnings.empty()) << look.warnings[0];
  }
}

TEST(Inspect, WithoutSoftcapAndBiasStepsRepeat) {
  const Inputs<double> in({1, 2, 1, 1, 18, 9, 5, 4});
  const auto look = inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 1);
  EXPECT_TRUE(same_bits(look.softcapped.values.view(), look.scaled.values.view()));
  EXPECT_TRUE(same_bits(look.biased.values.view(), look.scaled.values.view()));
  EXPECT_TRUE(same_bits(look.masked.values.view(), look.scaled.values.view()));
}

/// Everything that a mask lets the kernel skip is still shown up to the mask.
TEST(Inspect, ShowsSkippedTiles) {
  const Inputs<float> in({1, 1, 1, 1, 20, 400, 5, 4});
  AttentionOptions options;
  options.query_offset = 300;
  const auto look =
      inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 0, sliding_window(2, 1), options);
  const auto bare = inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 0);
  EXPECT_TRUE(same_bits(look.biased.values.view(), bare.masked.values.view()));
  for_each_index(look.masked.values.shape(), [&](Index, Index, Index i, Index j) {
    const bool seen = j >= i + 298 && j <= i + 301;
    EXPECT_EQ(look.masked.values(0, 0, i, j) == -infinity<float>(), !seen) << i << ", " << j;
  });
}

TEST(Inspect, RangesCountSeenKeysOnly) {
  const std::vector<float> q = {2}, k = {1, -3, 50, infinity<float>()}, v = {1, 2, 3, 4};
  AttentionOptions options;
  options.scale = 0.5;
  const auto look = inspect_attention(bhsd(q.data(), {1, 1, 1, 1}), bhsd(k.data(), {1, 1, 4, 1}),
                                      bhsd(v.data(), {1, 1, 4, 1}), 0, 0, key_lengths(2), options);
  EXPECT_EQ(look.raw.min, -6);
  EXPECT_EQ(look.raw.max, 2);
  EXPECT_EQ(look.raw.not_finite, 0);
  EXPECT_EQ(look.masked.min, -3);
  EXPECT_EQ(look.masked.max, 1);
  EXPECT_EQ(look.masked_keys, std::vector<Index>{2});
  EXPECT_EQ(look.raw.matrix()(0, 2), 100);
  EXPECT_EQ(look.raw.matrix().rows(), 1);
  EXPECT_EQ(look.output.min, look.output.max);

  const auto all = inspect_attention(bhsd(q.data(), {1, 1, 1, 1}), bhsd(k.data(), {1, 1, 4, 1}),
                                     bhsd(v.data(), {1, 1, 4, 1}), 0, 0, no_mask(), options);
  EXPECT_EQ(all.masked.min, -3);
  EXPECT_EQ(all.masked.max, 50);
  EXPECT_EQ(all.masked.not_finite, 1);
  EXPECT_EQ(all.output.not_finite, 1);
}

TEST(Inspect, SizesOfZero) {
  const Inputs<float> no_queries({1, 2, 1, 1, 0, 4, 3, 2});
  const auto none = inspect_attention(no_queries.q.view(), no_queries.k.view(), no_queries.v.view(),
                                      0, 1, causal_bottom_right());
  EXPECT_EQ(none.weights.values.shape(), (Shape4{1, 1, 0, 4}));
  EXPECT_TRUE(none.warnings.empty());
  EXPECT_NE(none.to_string().find("0 of 0 absent"), std::string::npos);

  const Inputs<float> no_keys({1, 2, 1, 1, 3, 0, 3, 2});
  const auto empty = inspect_attention(no_keys.q.view(), no_keys.k.view(), no_keys.v.view(), 0, 1);
  EXPECT_EQ(empty.output.values.shape(), (Shape4{1, 1, 3, 2}));
  EXPECT_EQ(empty.output.max, 0);
  EXPECT_EQ(empty.log_sum_exp(0, 0, 2, 0), -infinity<float>());
  EXPECT_EQ(empty.warnings.size(), 1u);

  const Inputs<float> no_dim({1, 1, 1, 1, 3, 4, 0, 2});
  const auto uniform = inspect_attention(no_dim.q.view(), no_dim.k.view(), no_dim.v.view(), 0, 0);
  EXPECT_EQ(uniform.raw.max, 0);
  EXPECT_EQ(uniform.weights.min, 0.25f);
}

TEST(Inspect, RefusesWhatTheCallRefuses) {
  const Inputs<float> in({2, 4, 2, 1, 3, 5, 7, 6});
  const auto inspect = [&](Index batch, Index head, AttentionOptions options = {}) {
    inspect_attention(in.q.view(), in.k.view(), in.v.view(), batch, head, no_mask(), options);
  };
  EXPECT_EQ(message_of<ShapeError>([&] { inspect(2, 0); }),
            "inspect_attention: q has no batch 2 with a head 0; got q [2, 4, 3, 7], k [2, 2, 5, "
            "7], v [2, 1, 5, 6]");
  for (const auto& [batch, head] : {std::pair<Index, Index>{-1, 0}, {0, -1}, {0, 4}}) {
    EXPECT_THROW(inspect(batch, head), ShapeError);
  }
  EXPECT_NO_THROW(inspect(1, 3));
  AttentionOptions options;
  options.softcap = -1;
  EXPECT_THROW(inspect(0, 0, options), OptionError);
  EXPECT_THROW(inspect_attention(in.q.view(), in.q.view(), in.v.view(), 0, 0), ShapeError);
  EXPECT_THROW(inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 0, causal()),
               ShapeError);
}

}  // namespace
}  // namespace attn

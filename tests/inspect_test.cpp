#include "attn/inspect.hpp"
#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"
#include "support/values.hpp"

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

// ---- Warnings -----------------------------------------------------------------------------------

/// The warnings of head 1 of batch 1.
template <class M>
std::vector<std::string> warnings_of(const Inputs<float>& in, const M& mask) {
  return inspect_attention(in.q.view(), in.k.view(), in.v.view(), 1, 1, mask).warnings;
}
using Warnings = std::vector<std::string>;

template <class T, class F>
TestTensor<T> filled(Shape4 shape, const F& f) {
  TestTensor<T> tensor(shape);
  tensor.fill(f);
  return tensor;
}

TEST(InspectWarnings, NumbersThatAreNotFinite) {
  Inputs<float> in({2, 2, 2, 2, 3, 5, 4, 2});
  in.k(1, 1, 3, 2) = test::quiet_nan<float>();
  in.k(1, 1, 4, 0) = infinity<float>();
  in.v(1, 1, 4, 1) = -infinity<float>();
  in.q(1, 0, 0, 0) = infinity<float>();  // of another head
  EXPECT_EQ(warnings_of(in, key_lengths(3)),
            (Warnings{"k holds 2 numbers that are infinite or NaN, the first at key 3, dim 2; no "
                      "query sees such a key, so it does no harm",
                      "v holds 1 number that is infinite or NaN, the first at key 4, dim 1; no "
                      "query sees such a key, so it does no harm"}));
  EXPECT_EQ(warnings_of(in, key_lengths(4)),
            (Warnings{"k holds 2 numbers that are infinite or NaN, the first at key 3, dim 2",
                      "v holds 1 number that is infinite or NaN, the first at key 4, dim 1; no "
                      "query sees such a key, so it does no harm",
                      "3 scores of keys that are seen: +infinity or NaN, the first of query 0 with "
                      "key 3; such a query's row is NaN"}));
  in.q(1, 1, 2, 3) = infinity<float>();
  const Warnings warnings = warnings_of(in, key_lengths(3));
  ASSERT_EQ(warnings.size(), 4u);
  EXPECT_EQ(warnings[0], "q holds 1 number that is infinite or NaN, the first at query 2, dim 3");
}

TEST(InspectWarnings, RowsWithoutKeys) {
  const Inputs<float> in({2, 2, 1, 1, 6, 6, 4, 2});
  const auto mask = drop_if([](ScorePosition at) { return at.query == 2 || at.query == 4; });
  EXPECT_EQ(warnings_of(in, mask),
            (Warnings{"2 of 6 queries see no key, the first is query 2: their weights and output "
                      "are 0"}));
}

TEST(InspectWarnings, MasksThatDropNothingOrEverything) {
  const Inputs<float> in({2, 2, 1, 1, 3, 5, 4, 2});
  const auto keeps = filled<bool>({2, 1, 1, 5}, [](Index, Index, Index, Index) { return true; });
  EXPECT_EQ(warnings_of(in, keep_where(keeps.view())),
            (Warnings{"keep_where mask [2, 1, 1, 5] drops nothing"}));
  EXPECT_EQ(warnings_of(in, drop_where(keeps.view())),
            (Warnings{"3 of 3 queries see no key, the first is query 0: their weights and output "
                      "are 0",
                      "drop_where mask [2, 1, 1, 5] drops every key of this head; keep_where keeps "
                      "and drop_where drops where the mask is true"}));
  // A padding mask that drops nothing of this batch, but something of another.
  const auto padding = filled<std::uint8_t>(
      {2, 1, 1, 5}, [](Index b, Index, Index, Index j) { return b == 0 && j > 2 ? 3 : 0; });
  EXPECT_EQ(warnings_of(in, drop_where(padding.view())), Warnings{});
}

TEST(InspectWarnings, CausalMasksOfTheOtherPolarity) {
  const Inputs<float> in({2, 2, 1, 1, 4, 4, 3, 2});
  const auto above =
      filled<bool>({1, 1, 4, 4}, [](Index, Index, Index i, Index j) { return j > i; });
  const auto upper =
      filled<bool>({1, 1, 4, 4}, [](Index, Index, Index i, Index j) { return j >= i; });
  const std::string reversed =
      " mask [1, 1, 4, 4] keeps the keys after each query and drops those before: a causal mask "
      "of the other polarity, or transposed";
  EXPECT_EQ(warnings_of(in, drop_where(above.view())), Warnings{});
  EXPECT_EQ(warnings_of(in, keep_where(above.view())),
            (Warnings{"1 of 4 queries see no key, the first is query 3: their weights and output "
                      "are 0",
                      "keep_where" + reversed}));
  EXPECT_EQ(warnings_of(in, keep_where(upper.view())), (Warnings{"keep_where" + reversed}));
  EXPECT_EQ(warnings_of(in, drop_where(upper.view())).size(), 1u);  // query 0 sees nothing
}

TEST(InspectWarnings, MasksAlongAnotherAxis) {
  const Inputs<float> square({2, 2, 1, 1, 4, 4, 3, 2});
  const auto flag = [](Index b, Index h, Index i, Index j) { return b + h + i + j == 3; };
  EXPECT_EQ(warnings_of(square, drop_where(filled<bool>({2, 1, 4, 1}, flag).view())),
            (Warnings{"1 of 4 queries see no key, the first is query 2: their weights and output "
                      "are 0",
                      "drop_where mask [2, 1, 4, 1] has one entry a query, the same for all keys; "
                      "entries a key (padding) have the shape [batch, 1, 1, keys]"}));
  EXPECT_EQ(
      warnings_of(square, drop_where(filled<bool>({1, 2, 1, 4}, flag).view())),
      (Warnings{"drop_where mask [1, 2, 1, 4] has other entries for each head, the same for "
                "all batches; entries a batch (padding) have the shape [batch, 1, 1, keys]"}));
  EXPECT_EQ(warnings_of(square, drop_where(filled<bool>({2, 1, 1, 4}, flag).view())), Warnings{});
  EXPECT_EQ(warnings_of(square, drop_where(filled<bool>({1, 2, 4, 4}, flag).view())), Warnings{});
  // Where its transpose would not fit, one entry a query is meant.
  const Inputs<float> wide({2, 3, 1, 1, 4, 5, 3, 2});
  const Warnings warnings = warnings_of(wide, drop_where(filled<bool>({2, 1, 4, 1}, flag).view()));
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings_of(wide, drop_where(filled<bool>({1, 3, 1, 5}, flag).view())), Warnings{});
}

TEST(InspectWarnings, BiasesThatLookLikeMasks) {
  const Inputs<float> in({2, 2, 1, 1, 3, 5, 4, 2});
  const auto penalty = filled<float>(
      {2, 1, 1, 5}, [](Index, Index, Index, Index j) { return j > 3 ? -1e9f : 0.0f; });
  EXPECT_EQ(warnings_of(in, add_bias(penalty.view())),
            (Warnings{"add_bias bias [2, 1, 1, 5] holds -1e+09: a finite bias never masks by "
                      "itself, and a row full of it attends evenly; use -infinity, keep_where or "
                      "drop_where"}));
  const auto flags = filled<Eigen::half>(
      {1, 2, 1, 5}, [](Index, Index, Index, Index j) { return j > 3 ? 1.0f : 0.0f; });
  const Warnings warnings = warnings_of(in, add_bias(flags.view()));
  ASSERT_EQ(warnings.size(), 2u);  // its axis looks wrong too
  EXPECT_EQ(warnings[1],
            "add_bias bias [1, 2, 1, 5] holds nothing but 0 and 1, which are added to the scores; "
            "flags are for keep_where or drop_where");
  const auto zeros = filled<double>({1, 1, 3, 5}, [](Index, Index, Index, Index) { return 0.0; });
  EXPECT_EQ(inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 0, add_bias(zeros.view()))
                .warnings,
            Warnings{});
  const auto masks = filled<float>({1, 1, 3, 5}, [](Index, Index, Index i, Index j) {
    return j > i ? -infinity<float>() : -100.0f;
  });
  EXPECT_EQ(warnings_of(in, add_bias(masks.view())), Warnings{});
}

// ---- Text ---------------------------------------------------------------------------------------

TEST(InspectText, TellsEverythingOfASmallHead) {
  const std::vector<float> q = {1, 0, 0, 2, 1, 1}, k = {1, 1, 0, 2, -1, 4};
  const auto look = inspect_attention(bhsd(q.data(), {1, 1, 3, 2}), bhsd(k.data(), {1, 1, 3, 2}),
                                      bhsd(k.data(), {1, 1, 3, 2}), 0, 0, causal(), [] {
                                        AttentionOptions options;
                                        options.scale = 0.5;
                                        return options;
                                      }());
  std::ostringstream stream;
  stream << look;
  EXPECT_EQ(stream.str(), look.to_string());
  EXPECT_EQ(look.to_string(), R"(attention of batch 0, query head 0 (key head 0, value head 0)
  q [1, 1, 3, 2], k [1, 1, 3, 2], v [1, 1, 3, 2]; query 0 stands at key 0

  step                                  size        min      max  not finite
  raw         q . k                    3 x 3          1        4           0
  scaled      raw x 0.5                3 x 3        0.5        2           0
  softcapped  no cap                   3 x 3        0.5        2           0
  biased      biases, score functions  3 x 3        0.5        2           0
  masked      3 of 9 absent, 33.3 %    3 x 3        0.5        2           0
  weights     softmax                  3 x 3   0.268941        1           0
  output      weights x v              3 x 2  -0.177794  2.62966           0

  query  keys seen  absent  largest weight  of key  sum of weights  log-sum-exp
  0              1       2        1.000000       0        1.000000          0.5
  1              2       1        0.731059       1        1.000000      2.31326
  2              3       0        0.451863       2        1.000000      2.29438

  masked scores  key 0  key 1  key 2
    query 0      0.500      .      .
    query 1      1.000  2.000      .
    query 2      1.000  1.000  1.500

  weights     key 0   key 1   key 2
    query 0  1.0000       .       .
    query 1  0.2689  0.7311       .
    query 2  0.2741  0.2741  0.4519
)");
}

TEST(InspectText, LeavesOutWhatIsTooLarge) {
  const Inputs<float> in({1, 1, 1, 1, 20, 13, 4, 2});
  const std::string text =
      inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 0).to_string();
  EXPECT_EQ(text.find("key 0"), text.rfind("key 0"));  // in the header only
  EXPECT_NE(text.find("\n  15 "), std::string::npos);
  EXPECT_EQ(text.find("\n  16 "), std::string::npos);
  EXPECT_NE(text.find("and 4 more queries\n"), std::string::npos);
}

TEST(InspectText, NamesSinkDropoutAndWarnings) {
  const Inputs<float> in({1, 2, 1, 1, 2, 3, 4, 2});
  const std::vector<double> sinks = {-1, 0.25};
  AttentionOptions options;
  options.softcap = 30;
  options.sinks = sinks;
  options.dropout.probability = 0.1;
  const auto look =
      inspect_attention(in.q.view(), in.k.view(), in.v.view(), 0, 1,
                        drop_if([](ScorePosition at) { return at.query == 1; }), options);
  const std::string text = look.to_string();
  for (const char* part :
       {"softmax, sink 0.25, dropout 0.1", "softcapped  at 30", "3 of 6 absent, 50.0 %",
        "query head 1 (key head 0, value head 0)", "\n\n  warning: 1 of 2 queries see no key"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing from:\n" << text;
  }
  // The row without a key has no largest weight; its log-sum-exp is the sink.
  EXPECT_NE(text.find("\n  1              0       3               -       -        0.000000        "
                      " 0.25\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace attn

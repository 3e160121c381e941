// What an inspection says: its warnings, and its text.
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "attn/inspect.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::infinity;
using test::Inputs;
using test::TestTensor;

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

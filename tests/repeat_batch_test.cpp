// Masks of few batches, repeated over the batches of a call.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/inspect.hpp"
#include "attn/ragged.hpp"
#include "support/results.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::expect_same;
using test::Inputs;
using test::message_of;
using test::run;
using test::Sizes;
using test::TestTensor;

/// Tensors and numbers of `count` batches, and the same for all batches of a call.
struct Windows {
  Index count;
  Sizes sizes;
  TestTensor<bool> keep, all_keep;
  TestTensor<float> bias, all_bias;
  TestTensor<std::int32_t> ids, all_ids;
  std::vector<Index> lengths, all_lengths;

  Windows(const Sizes& s, Index n)
      : count(n),
        sizes(s),
        keep({n, 1, s.query_length, s.key_length}),
        all_keep({s.batch, 1, s.query_length, s.key_length}),
        bias({n, s.query_heads, s.query_length, s.key_length}),
        all_bias(s.scores()),
        ids({n, 1, s.key_length, 1}),
        all_ids({s.batch, 1, s.key_length, 1}) {
    const auto flag = [n](Index b, Index, Index i, Index j) { return (b % n + i * j) % 3 != 1; };
    keep.fill(flag);
    all_keep.fill(flag);
    const auto number = [n](Index b, Index h, Index i, Index j) {
      return (b % n + i + j) % 5 == 0 ? -test::infinity<float>()
                                      : static_cast<float>((b % n) * h + i - j) / 8;
    };
    bias.fill(number);
    all_bias.fill(number);
    const auto id = [n](Index b, Index, Index i, Index) {
      return static_cast<std::int32_t>(i / (b % n + 2));
    };
    ids.fill(id);
    all_ids.fill(id);
    for (Index b = 0; b < s.batch; ++b) {
      all_lengths.push_back(s.key_length - b % n);
      if (b < n) lengths.push_back(all_lengths.back());
    }
  }
};

TEST(RepeatBatch, TakesTheMasksBatchesInTurn) {
  for (const Sizes& sizes : {Sizes{6, 4, 2, 2, 9, 9, 5, 4}, Sizes{6, 2, 1, 1, 40, 40, 5, 4}}) {
    for (const Index count : {1, 2, 3, 6}) {
      SCOPED_TRACE(count);
      const Windows w(sizes, count);
      const Inputs<float> in(sizes, 41);
      const auto twice = [](Index n) {
        return modify_score([n](auto score, ScorePosition at) {
          return score * static_cast<decltype(score)>(1 + at.batch % n);
        });
      };
      expect_same(run(in, repeat_batch(keep_where(w.keep.view()), count)),
                  run(in, keep_where(w.all_keep.view())), "keep_where");
      expect_same(run(in, repeat_batch(add_bias(w.bias.view()) & twice(99), count) & causal()),
                  run(in, add_bias(w.all_bias.view()) & twice(count) & causal()), "bias");
      expect_same(run(in, causal() & repeat_batch(key_lengths(w.lengths), count)),
                  run(in, causal() & key_lengths(w.all_lengths)), "key_lengths");
      expect_same(
          run(in,
              repeat_batch((causal() & first_keys(w.lengths)) | same_segment(w.ids.view()), count)),
          run(in, (causal() & first_keys(w.all_lengths)) | same_segment(w.all_ids.view())),
          "union");
      expect_same(
          run(in, AnyMask(repeat_batch(AnyMask(keep_where(w.keep.view())), count)) | first_keys(1)),
          run(in, keep_where(w.all_keep.view()) | first_keys(1)), "any");
      expect_same(run(in, repeat_batch(repeat_batch(keep_where(w.keep.view()), count), 6)),
                  run(in, keep_where(w.all_keep.view())), "twice");
    }
  }
}

TEST(RepeatBatch, SeesTheBatchesOfTheMask) {
  const Sizes sizes{6, 1, 1, 1, 3, 5, 2, 2};
  const Inputs<float> in(sizes, 42);
  const auto of_batch = [](Index n) {
    return keep_if([n](ScorePosition at) { return at.key % 3 == at.batch % n; });
  };
  expect_same(run(in, repeat_batch(of_batch(99), 3)), run(in, of_batch(3)), "lambda");
}

// Two sequences share each mask of a ragged call.
TEST(RepeatBatch, OfPackedSequences) {
  const std::vector<Index> starts = {0, 5, 8, 12, 13};
  const std::vector<Index> lengths = {4, 1}, all_lengths = {4, 1, 4, 1};
  TestTensor<float> q({1, 2, 13, 4}), out({1, 2, 13, 4}), expected({1, 2, 13, 4});
  q.fill_uniform(5);
  const auto attend = [&](const AnyMask& mask, TestTensor<float>& to) {
    ragged_attention(q.view(), q.view(), q.view(), to.view(), starts, mask);
  };
  attend(first_keys(all_lengths), expected);
  attend(repeat_batch(first_keys(lengths), 2), out);
  EXPECT_TRUE(test::same_bits(out.view(), expected.view()));
}

TEST(RepeatBatch, CanBeLookedInto) {
  const Sizes sizes{4, 2, 2, 2, 6, 6, 4, 4};
  const Windows w(sizes, 2);
  const Inputs<float> in(sizes, 43);
  for (const Index b : {0, 3}) {
    const auto repeated =
        inspect_attention(in.q.view(), in.k.view(), in.v.view(), b, 1,
                          repeat_batch(keep_where(w.keep.view()) & add_bias(w.bias.view()), 2));
    const auto plain =
        inspect_attention(in.q.view(), in.k.view(), in.v.view(), b, 1,
                          keep_where(w.all_keep.view()) & add_bias(w.all_bias.view()));
    EXPECT_TRUE(test::same_bits(repeated.masked.values.view(), plain.masked.values.view()));
    EXPECT_TRUE(test::same_bits(repeated.weights.values.view(), plain.weights.values.view()));
  }
}

TEST(RepeatBatch, SaysWhatIsWrong) {
  const Sizes sizes{6, 1, 1, 1, 4, 4, 2, 2};
  const Windows w(sizes, 3);
  const Inputs<float> in(sizes, 44);
  const auto error_of = [&](const AnyMask& mask) {
    const std::string text = message_of<std::invalid_argument>([&] { run(in, mask); });
    return text.substr(0, text.find(';'));
  };
  const std::string call = "scaled_dot_product_attention: ";
  const auto keep = keep_where(w.keep.view());
  EXPECT_EQ(error_of(repeat_batch(keep, 0)),
            call + "repeat_batch(mask, count) takes a count of 1 or more, got 0");
  EXPECT_EQ(error_of(repeat_batch(keep, 4)),
            call + "the count of repeat_batch(mask, count) must divide the batch, 6, got 4");
  EXPECT_EQ(error_of(repeat_batch(keep, 2)),
            call +
                "the keep_where mask must have the shape of the scores, or 1, on every axis: "
                "scores [2, 1, 4, 4]");
  EXPECT_EQ(error_of(repeat_batch(key_lengths(w.lengths), 2)),
            call + "key_lengths must hold one number, or one each batch of repeat_batch, 2, got 3");
  EXPECT_EQ(error_of(repeat_batch(causal_from(w.lengths), 3)),
            call +
                "causal_from(offset) inside repeat_batch takes one number: queries stand where "
                "their own batch of the call says");
  EXPECT_EQ(error_of(repeat_batch(AnyMask(alibi()), 3) | first_keys(1)).find(call + "one of the "),
            0u);
  EXPECT_NO_THROW(run(in, repeat_batch(causal_from(1), 3)));
  EXPECT_EQ(error_of(repeat_batch(causal_from(1), 3) & causal_from(2)),
            call +
                "causal_from(offset) and causal_from(offset) give different positions to the "
                "queries");
}

}  // namespace
}  // namespace attn

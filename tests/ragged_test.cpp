#include "attn/ragged.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/executor.hpp"
#include "attn/mask.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kQueryHeads = 6, kHeads = 2, kKeyDim = 7, kValueDim = 5;

std::vector<Index> starts_of(const std::vector<Index>& lengths) {
  std::vector<Index> starts = {0};
  for (const Index length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

/// Packed sequences, and each alone.
struct Ragged {
  std::vector<Index> query_lengths, key_lengths, query_starts, key_starts;
  TestTensor<float> q, k, v;

  Ragged(std::vector<Index> queries, std::vector<Index> keys, Layout layout = Layout::bshd)
      : query_lengths(std::move(queries)),
        key_lengths(std::move(keys)),
        query_starts(starts_of(query_lengths)),
        key_starts(starts_of(key_lengths)),
        q({1, kQueryHeads, query_starts.back(), kKeyDim}, layout),
        k({1, kHeads, key_starts.back(), kKeyDim}, layout),
        v({1, kHeads, key_starts.back(), kValueDim}, layout) {
    q.fill_uniform(1, 3);
    k.fill_uniform(2);
    v.fill_uniform(3);
  }

  Index sequences() const { return static_cast<Index>(query_lengths.size()); }
  Index query_length(Index s) const { return query_lengths[static_cast<std::size_t>(s)]; }
  Index key_length(Index s) const { return key_lengths[static_cast<std::size_t>(s)]; }
  Tensor4<const float> queries(Index s) const {
    return q.view().slice_length(query_starts[static_cast<std::size_t>(s)], query_length(s));
  }
  Tensor4<const float> keys(Index s) const {
    return k.view().slice_length(key_starts[static_cast<std::size_t>(s)], key_length(s));
  }
  Tensor4<const float> values(Index s) const {
    return v.view().slice_length(key_starts[static_cast<std::size_t>(s)], key_length(s));
  }
};

const std::vector<Index> kLengths = {5, 1, 0, 130, 17, 64, 3};

/// One ragged call against one call a sequence; mask_of(s) is the mask of sequence s alone.
template <class M, class MaskOf>
void expect_bits_of_single_calls(const Ragged& ragged, const SequenceStarts& starts, const M& mask,
                                 const MaskOf& mask_of, const AttentionOptions& options = {}) {
  TestTensor<float> out({1, kQueryHeads, ragged.query_starts.back(), kValueDim}, Layout::bshd);
  TestTensor<float> lse({1, kQueryHeads, ragged.query_starts.back(), 1});
  ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(), starts, mask,
                   options, lse.view());
  AttentionOptions serial = options;
  serial.executor = nullptr;
  for (Index s = 0; s < ragged.sequences(); ++s) {
    SCOPED_TRACE("sequence " + std::to_string(s));
    const auto alone = scaled_dot_product_attention(
        ragged.queries(s), ragged.keys(s), ragged.values(s), mask_of(s), serial, Want::log_sum_exp);
    const Index first = ragged.query_starts[static_cast<std::size_t>(s)];
    EXPECT_TRUE(
        same_bits(out.view().slice_length(first, ragged.query_length(s)), alone.output.view()));
    EXPECT_TRUE(same_bits(lse.view().slice_length(first, ragged.query_length(s)),
                          alone.log_sum_exp.view()));
  }
  EXPECT_TRUE(out.gaps_are_untouched());
}

TEST(RaggedAttention, HasTheBitsOfOneCallASequence) {
  const std::vector<double> sinks = {0, 1, -1, 2, 0.5, -3};
  for (const Layout layout : {Layout::bshd, Layout::contiguous, Layout::inner_stride}) {
    const Ragged ragged(kLengths, kLengths, layout);
    for (const AnyMask& mask : {AnyMask(), AnyMask(causal()), AnyMask(sliding_window(4, 2)),
                                AnyMask(alibi() & causal_bottom_right())}) {
      AttentionOptions options;
      options.softcap = 5;
      options.sinks = sinks;
      expect_bits_of_single_calls(
          ragged, ragged.query_starts, mask, [&](Index) { return mask; }, options);
    }
  }
}

TEST(RaggedAttention, CrossesToSequencesOfOtherLengths) {
  const Ragged ragged(kLengths, {9, 0, 4, 200, 17, 1, 3});
  for (const AnyMask& mask :
       {AnyMask(), AnyMask(causal_bottom_right()), AnyMask(causal_top_left())}) {
    expect_bits_of_single_calls(ragged, {ragged.query_starts, ragged.key_starts}, mask,
                                [&](Index) { return mask; });
  }
}

TEST(RaggedAttention, PerBatchNumbersAreOneASequence) {
  const Ragged ragged({5, 1, 8}, {9, 4, 8});
  const std::vector<Index> lengths = {7, 4, 0}, offsets = {2, 3, 0};
  const auto of = [](const std::vector<Index>& numbers, Index s) {
    return numbers[static_cast<std::size_t>(s)];
  };
  expect_bits_of_single_calls(
      ragged, {ragged.query_starts, ragged.key_starts},
      key_lengths(lengths) & causal_from(offsets) & sliding_window(3, 0), [&](Index s) {
        return key_lengths(of(lengths, s)) & causal_from(of(offsets, s)) & sliding_window(3, 0);
      });
}

TEST(RaggedAttention, LambdasAndDropoutSeeTheSequenceAsBatch) {
  const Ragged ragged({3, 3, 3}, {8, 8, 8});
  // The same tokens in a batch.
  const auto batch_of = [](const TestTensor<float>& tokens) {
    const Tensor4<const float> t = tokens.view();
    const Index length = t.length() / 3;
    return Tensor4<const float>(
        t.data(), Shape4{3, t.heads(), length, t.dim()},
        Stride4{length * t.stride().length, t.stride().heads, t.stride().length, t.stride().dim});
  };
  AttentionOptions options;
  options.dropout = Dropout{0.3, 7, 8};
  const auto mask = keep_if([](const ScorePosition& at) {
    return (at.batch + at.key + at.query) % 4 != 0 && at.query_position == at.query + 5;
  });
  TestTensor<float> out({1, kQueryHeads, 9, kValueDim}, Layout::bshd);
  ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(),
                   {ragged.query_starts, ragged.key_starts}, mask, options);
  const auto expected = scaled_dot_product_attention(batch_of(ragged.q), batch_of(ragged.k),
                                                     batch_of(ragged.v), mask, options);
  EXPECT_TRUE(same_bits(batch_of(out), expected.output.view()));
}

TEST(RaggedAttention, StartsAreAnyIntegers) {
  const Ragged ragged({2, 3}, {2, 3});
  const auto run = [&](const SequenceStarts& starts) {
    TestTensor<float> out({1, kQueryHeads, 5, kValueDim});
    ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(), starts);
    return out;
  };
  const std::vector<std::int32_t> narrow = {0, 2, 5};
  const std::int64_t wide[] = {0, 2, 5};
  const auto expected = run(ragged.query_starts);
  EXPECT_TRUE(same_bits(run(narrow).view(), expected.view()));
  EXPECT_TRUE(same_bits(run(wide).view(), expected.view()));
  EXPECT_TRUE(same_bits(run({narrow, wide}).view(), expected.view()));
  EXPECT_TRUE(same_bits(run(Span<const std::int32_t>(narrow)).view(), expected.view()));
}

TEST(RaggedAttention, BitsDoNotDependOnExecutors) {
  // One sequence with most of the work, and many short ones.
  std::vector<Index> lengths(40, 9);
  lengths[20] = 400;
  const Ragged ragged(lengths, lengths);
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    AttentionOptions options;
    options.executor = &pool;
    expect_bits_of_single_calls(
        ragged, ragged.query_starts, causal(), [](Index) { return causal(); }, options);
  }
}

TEST(RaggedAttention, RefusesQueriesThatSeeEvictedTokens) {
  const CachedTokens<float> tokens({5, 31}, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> cache(2, kHeads, 10, kKeyDim, kValueDim);
  tokens.feed(cache, 1);
  const std::vector<Index> starts = {0, 3, 5};
  TestTensor<float> q({1, kQueryHeads, 5, kKeyDim}), out({1, kQueryHeads, 5, kValueDim});
  q.fill_uniform(4, 3);
  out.fill_value(5);
  const TestTensor<float> before = out;
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        ragged_attention(q.view(), cache, out.view(), starts, causal());
      }).substr(0, 101),
      "ragged_attention: query 0 of batch 1, at position 29, sees key 20, and the cache holds "
      "none before 21");
  EXPECT_TRUE(same_bits(out.view(), before.view()));
  EXPECT_NO_THROW(
      ragged_attention(q.view(), cache, out.view(), starts, causal() & sliding_window(8, 0)));
}

TEST(RaggedAttention, AttendsToCaches) {
  // Prompts, single tokens, a sequence that waits, and one that has only begun.
  const std::vector<Index> held = {131, 40, 12, 5}, new_queries = {1, 40, 0, 2};
  const CachedTokens<float> tokens(held, kHeads, kKeyDim, kValueDim);
  KeyValueCache<float> contiguous(4, kHeads, 140, kKeyDim, kValueDim);
  PagedKeyValueCache<float> paged(40, 8, 4, kHeads, kKeyDim, kValueDim);
  RollingKeyValueCache<float> rolling(4, kHeads, 10, kKeyDim, kValueDim, 40);
  tokens.feed(contiguous, 33);
  tokens.feed(paged, 33);
  tokens.feed(rolling, 33);
  const std::vector<Index> starts = starts_of(new_queries);
  TestTensor<float> q({1, kQueryHeads, starts.back(), kKeyDim}, Layout::bshd);
  q.fill_uniform(4, 3);

  const auto expect = [&](const auto& cache, const auto& mask, const auto& tensor_mask,
                          Executor* executor) {
    TestTensor<float> out({1, kQueryHeads, starts.back(), kValueDim}, Layout::bshd);
    AttentionOptions options;
    options.executor = executor;
    ragged_attention(q.view(), cache, out.view(), starts, mask, options);
    for (std::size_t s = 0; s < 4; ++s) {
      const Index b = static_cast<Index>(s);
      AttentionOptions alone;
      alone.query_offset = held[s] - new_queries[s];
      const auto expected = scaled_dot_product_attention(
          q.view().slice_length(starts[s], new_queries[s]),
          tokens.k.view().slice_batch(b, 1).slice_length(0, held[s]),
          tokens.v.view().slice_batch(b, 1).slice_length(0, held[s]), tensor_mask, alone);
      EXPECT_TRUE(
          same_bits(out.view().slice_length(starts[s], new_queries[s]), expected.output.view()))
          << "sequence " << s;
    }
  };
  ThreadPool pool(3);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    expect(contiguous, causal(), causal(), executor);
    expect(paged, causal_bottom_right() & alibi(), causal() & alibi(), executor);
    expect(rolling, causal(), causal() & sliding_window(9, 0), executor);
  }
}

TEST(RaggedAttention, CallsWithAWorkspaceAllocateNothing) {
  const Ragged ragged(kLengths, kLengths);
  TestTensor<float> out({1, kQueryHeads, ragged.query_starts.back(), kValueDim}, Layout::bshd);
  TestTensor<float> expected({1, kQueryHeads, ragged.query_starts.back(), kValueDim}, Layout::bshd);
  ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), expected.view(),
                   ragged.query_starts, causal());
  ThreadPool pool(2);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    AttentionOptions options;
    options.executor = executor;
    std::vector<char> memory(ragged_workspace_bytes(
        ragged.q.view(), ragged.k.view(), ragged.v.view(), ragged.query_starts, causal(), options));
    options.workspace = {memory.data(), memory.size()};
    allocations().reset();
    ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(),
                     ragged.query_starts, causal(), options);
    EXPECT_EQ(allocations().count.load(), 0u);
    EXPECT_TRUE(same_bits(out.view(), expected.view()));

    options.workspace.bytes /= 2;
    const std::string text = message_of<OptionError>([&] {
      ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(),
                       ragged.query_starts, causal(), options);
    });
    // It is enough for either accumulation type, and a call needs no more than its own.
    EXPECT_EQ(text.find("ragged_attention: options.workspace is too small: "
                        "ragged_workspace_bytes asks for "),
              0u)
        << text;
    EXPECT_NE(text.find(" bytes, got " + std::to_string(options.workspace.bytes) + "; "),
              std::string::npos)
        << text;
  }
}

TEST(RaggedAttention, SizesOfZeroAreLegal) {
  const std::vector<Index> none = {0}, empty = {0, 0, 0};
  const TestTensor<float> q({1, kQueryHeads, 0, kKeyDim}), k({1, kHeads, 0, kKeyDim});
  TestTensor<float> out({1, kQueryHeads, 0, kKeyDim});
  ragged_attention(q.view(), k.view(), k.view(), out.view(), none, causal());
  ragged_attention(q.view(), k.view(), k.view(), out.view(), empty, causal());
  EXPECT_EQ(ragged_workspace_bytes(q.view(), k.view(), k.view(), empty), 0u);
  // Sequences without keys get zeros.
  const std::vector<Index> two = {0, 1, 3};
  TestTensor<float> some({1, kQueryHeads, 3, kKeyDim}), zeros({1, kQueryHeads, 3, kKeyDim});
  some.fill_uniform(1);
  ragged_attention(some.view(), k.view(), k.view(), zeros.view(), {two, empty});
  for_each_index(zeros.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_TRUE(same_bits(zeros(b, h, i, d), 0.0f));
  });
}

TEST(RaggedAttention, RefusesWhatDoesNotFitBeforeAnythingIsWritten) {
  const Ragged ragged({2, 3}, {4, 3});
  TestTensor<float> out({1, kQueryHeads, 5, kValueDim});
  const auto message = [&](const SequenceStarts& starts, const AnyMask& mask = no_mask()) {
    const std::string text = message_of<ShapeError>([&] {
      ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(), starts, mask);
    });
    EXPECT_TRUE(out.is_untouched());
    EXPECT_EQ(text.substr(0, 18), "ragged_attention: ");
    return text.substr(18, text.find(';') - 18);
  };
  const std::vector<Index> q_starts = {0, 2, 5}, k_starts = {0, 4, 7}, from_one = {1, 2, 5},
                           down = {0, 6, 5}, short_end = {0, 2, 4}, three = {0, 1, 2, 7},
                           nothing = {};
  EXPECT_EQ(message({from_one, k_starts}), "starts must begin with 0, got 1");
  EXPECT_EQ(message({down, k_starts}), "starts must not decrease, got 6 and then 5");
  EXPECT_EQ(message({short_end, k_starts}),
            "starts must end with the number of packed tokens, 5, got 4");
  EXPECT_EQ(message({q_starts, q_starts}),
            "key_starts must end with the number of packed tokens, 7, got 5");
  EXPECT_EQ(message({q_starts, three}),
            "query_starts and key_starts must hold as many numbers, got 3 and 4");
  EXPECT_EQ(message({nothing, nothing}),
            "starts must hold one number a sequence and one for the end");
  EXPECT_EQ(message({0, 0}), "starts must hold one number a sequence and one for the end");
  EXPECT_EQ(message({q_starts, k_starts}, causal()).substr(0, 48),
            "causal() needs as many queries as keys, or a pos");
  const std::vector<Index> wrong = {1, 2, 3};
  EXPECT_EQ(message({q_starts, k_starts}, causal_from(wrong)),
            "causal_from(offset) must hold one number, or one each batch of q, 2, got 3");
  const std::vector<Index> too_long = {4, 4};
  EXPECT_EQ(message_of<OptionError>([&] {
              ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(), out.view(),
                               {q_starts, k_starts}, key_lengths(too_long));
            }),
            "ragged_attention: key_lengths must lie within 0 and the number of keys 3, got 4 for "
            "batch 1; got q [1, 6, 5, 7], k [1, 2, 7, 7], v [1, 2, 7, 5], out [1, 6, 5, 5], "
            "sequence 1 of 3 queries and 3 keys");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ragged_attention(ragged.q.view(), ragged.k.view(), ragged.v.view(),
                               out.view().slice_length(0, 4), {q_starts, k_starts});
            }),
            "ragged_attention: out must be [batch of q, heads of q, length of q, dim of v]; got "
            "q [1, 6, 5, 7], k [1, 2, 7, 7], v [1, 2, 7, 5], out [1, 6, 4, 5]");
  TestTensor<float> two_batches({2, kQueryHeads, 5, kKeyDim});
  EXPECT_EQ(message_of<ShapeError>([&] {
              ragged_attention(two_batches.view(), ragged.k.view(), ragged.v.view(), out.view(),
                               {q_starts, k_starts});
            }),
            "ragged_attention: packed tensors must have batch 1; got q [2, 6, 5, 7], "
            "k [1, 2, 7, 7], v [1, 2, 7, 5]");
  KeyValueCache<float> cache(3, kHeads, 8, kKeyDim, kValueDim);
  EXPECT_EQ(message_of<ShapeError>(
                [&] { ragged_attention(ragged.q.view(), cache, out.view(), q_starts); }),
            "ragged_attention: query_starts must hold one number a sequence of the cache, 3, and "
            "one for the end, got 3; got q [1, 6, 5, 7], k [3, 2, 0, 7], v [3, 2, 0, 5]");
  EXPECT_TRUE(out.is_untouched());
}

TEST(Packed, IsAViewOfTokensHeadsAndDims) {
  std::vector<float> memory(2 * 3 * 4);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const Tensor4<float> view = packed(memory.data(), 2, 3, 4);
  EXPECT_EQ(view.shape(), (Shape4{1, 3, 2, 4}));
  EXPECT_EQ(view(0, 2, 1, 3), 23);
  EXPECT_EQ(view(0, 1, 0, 2), 6);
}

}  // namespace
}  // namespace test
}  // namespace attn

// Scratch memory: how much, who brings it, and calls that allocate nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/allocations.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::allocations;
using test::Inputs;
using test::Layout;
using test::Sizes;
using test::TestTensor;

const Sizes kShapes[] = {{2, 4, 2, 2, 3, 37, 9, 6},      // few rows
                         {2, 6, 3, 2, 31, 150, 20, 33},  // several tiles
                         {1, 2, 1, 1, 99, 20, 5, 900},   // several blocks of rows
                         {1, 4, 2, 4, 2, 8500, 4, 5}};   // split keys

/// Allocations of one call.
template <class Call>
std::size_t allocations_of(const Call& call) {
  allocations().reset();
  call();
  return allocations().count;
}

TEST(Allocations, AreCounted) {
  // Not a new expression, which a compiler may leave out.
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(4)); }), 1u);
  EXPECT_EQ(allocations_of([] { std::vector<double> v(10); }), 1u);
  EXPECT_EQ(allocations_of([] { Tensor4Buffer<float> b({1, 1, 3, 3}); }), 1u);
  EXPECT_GE(allocations().bytes, 36u);
}

/// Counts with the caller's workspace and without, for one call.
template <class Out, class Q, class K, class V, class M>
void check_allocations(const Inputs<Q, K, V>& in, const Sizes& sizes, const M& mask,
                       AttentionOptions options) {
  using A = AccumulationType<Q, K, V, Out>;
  TestTensor<Out> out(sizes.out(), Layout::bshd), own(sizes.out());
  TestTensor<A> weights(sizes.scores()), log_sum_exp(sizes.rows());
  const AttentionOutputs<A> extra{weights.view(), log_sum_exp.view()};
  EXPECT_EQ(allocations_of([&] {
              scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), own.view(), mask,
                                           options, extra);
            }),
            1u)
      << "all scratch of a call is one block";
  const std::size_t bytes =
      attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), mask, options);
  std::vector<char> memory(bytes);
  options.workspace = {memory.data(), bytes};
  EXPECT_EQ(allocations_of([&] {
              scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), mask,
                                           options, extra);
            }),
            0u);
  EXPECT_TRUE(test::same_bits(out.view(), own.view()));
}

TEST(Allocations, NoneWithAWorkspace) {
  for (const Sizes& sizes : kShapes) {
    SCOPED_TRACE(sizes);
    const std::vector<double> sinks(static_cast<std::size_t>(sizes.query_heads), 0.5);
    AttentionOptions plain, full;
    full.sinks = sinks;
    full.softcap = 3;
    full.dropout = {0.3, 1, 2};
    full.query_offset = 5;
    TestTensor<bool> kept(sizes.scores());
    kept.fill([](Index, Index, Index i, Index j) { return (i + j) % 3 != 0; });
    const AnyMask any = causal() & keep_where(kept.view()) & alibi() &
                        modify_score([](auto score, ScorePosition) { return score; });
    for (const InstructionSet set : test::instruction_sets()) {
      plain.instruction_set = full.instruction_set = set;
      check_allocations<float>(Inputs<float>(sizes), sizes, no_mask(), plain);
      check_allocations<float>(Inputs<float>(sizes, 1, Layout::mixed), sizes, any, full);
      check_allocations<half>(Inputs<half, bfloat16, float>(sizes), sizes, any, full);
      check_allocations<double>(Inputs<double>(sizes, 2, Layout::inner_stride), sizes,
                                causal() & key_lengths(sizes.key_length - 1), full);
    }
    // Infinite values take a second pass: with the same memory.
    Inputs<float> infinite(sizes);
    infinite.v(0, 0, 1, 0) = test::infinity<float>();
    check_allocations<float>(infinite, sizes, any, full);
  }
}

TEST(Allocations, NoneForAnEmptyCall) {
  Tensor4Buffer<float> q({2, 2, 0, 4}), k({2, 2, 5, 4}), out({2, 2, 0, 4});
  EXPECT_EQ(attention_workspace_bytes(q, k, k), 0u);
  EXPECT_EQ(allocations_of([&] { scaled_dot_product_attention(q, k, k, out); }), 0u);
}

TEST(Allocations, MasksAreNotCopied) {
  const Index length = 1000, heads = 16;
  Tensor4Buffer<float> q({1, heads, length, 4}), out({1, heads, length, 4});
  Tensor4Buffer<bool> mask({1, 1, length, length});
  allocations().reset();
  scaled_dot_product_attention(q, q, q, out, keep_where(mask.view()));
  EXPECT_LT(allocations().bytes, std::size_t{1} << 20);
}

TEST(WorkspaceBytes, AreEnoughAtAnyAlignmentAndForAnyOut) {
  for (const Sizes& sizes : kShapes) {
    SCOPED_TRACE(sizes);
    const Inputs<half> in(sizes);
    TestTensor<half> narrow(sizes.out());
    TestTensor<double> wide(sizes.out());
    TestTensor<double> weights(sizes.scores()), log_sum_exp(sizes.rows());
    for (const std::size_t shift : {0u, 1u, 31u, 63u}) {
      const std::size_t bytes = attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view());
      std::vector<char> memory(bytes + shift);
      AttentionOptions options;
      options.workspace = {memory.data() + shift, bytes};
      EXPECT_NO_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(),
                                                   narrow.view(), no_mask(), options));
      EXPECT_NO_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(),
                                                   wide.view(), no_mask(), options,
                                                   {weights.view(), log_sum_exp.view()}));
    }
  }
}

TEST(WorkspaceBytes, FollowTheExecutor) {
  for (const Sizes& sizes : kShapes) {
    const Inputs<float> in(sizes);
    TestTensor<float> out(sizes.out()), expected(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), expected.view());
    const std::size_t one = attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view());
    for (const int threads : {2, 5, 8}) {
      ThreadPool pool(threads);
      AttentionOptions options;
      options.executor = &pool;
      const std::size_t bytes =
          attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), no_mask(), options);
      EXPECT_GE(bytes, one);
      EXPECT_LE(bytes, one * static_cast<std::size_t>(threads));
      std::vector<char> memory(bytes + 64, 'x');
      options.workspace = {memory.data() + 1, bytes};
      scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), no_mask(),
                                   options);
      EXPECT_TRUE(test::same_bits(out.view(), expected.view()));
      for (std::size_t i = bytes + 1; i < memory.size(); ++i) EXPECT_EQ(memory[i], 'x');
    }
  }
}

TEST(WorkspaceBytes, OneLessIsAnErrorBeforeAnythingIsWritten) {
  for (const Sizes& sizes : kShapes) {
    SCOPED_TRACE(sizes);
    const Inputs<double> in(sizes);  // of the widest accumulation type, so that the size is exact
    TestTensor<double> out(sizes.out());
    const std::size_t bytes = attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view());
    alignas(64) static char memory[1 << 22];
    ASSERT_LE(bytes, sizeof memory);
    AttentionOptions options;
    // The worst alignment takes all of it.
    options.workspace = {memory + 1, bytes - 2};
    EXPECT_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                                              no_mask(), options),
                 OptionError);
    EXPECT_TRUE(out.is_untouched());
    options.workspace = {memory + 1, 0};
    EXPECT_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                                              no_mask(), options),
                 OptionError);
    EXPECT_TRUE(out.is_untouched());
  }
}

// An allocation of the caller's that failed must not become one of ours.
TEST(WorkspaceBytes, AreNotAllocatedInThePlaceOfANullWorkspace) {
  const Sizes sizes{1, 2, 1, 1, 3, 5, 4, 2};
  const Inputs<float> in(sizes, 84);
  TestTensor<float> out(sizes.out());
  AttentionOptions options;
  options.workspace = {nullptr, 100000};
  EXPECT_THROW(scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                                            no_mask(), options),
               OptionError);
  EXPECT_TRUE(out.is_untouched());
}

TEST(WorkspaceBytes, DoNotGrowWithTheSequence) {
  const auto bytes_of = [](Index queries, Index keys) {
    float number = 0;
    const Stride4 zero{0, 0, 0, 0};
    const Tensor4<float> q(&number, {1, 1, queries, 64}, zero), k(&number, {1, 1, keys, 64}, zero);
    return attention_workspace_bytes(q, k, k);
  };
  const std::size_t at_1000 = bytes_of(1000, 1000);
  EXPECT_EQ(bytes_of(1000000, 1000), at_1000);
  EXPECT_EQ(bytes_of(1000, 1000000), at_1000);
  EXPECT_EQ(bytes_of(1000000, 1000000), at_1000);
  EXPECT_LT(at_1000, std::size_t{2} << 20);  // for double, the wider of the two
  // Decode keeps one state for each 4096 keys.
  EXPECT_LT(bytes_of(1, 1000000), std::size_t{1} << 20);
}

}  // namespace
}  // namespace attn

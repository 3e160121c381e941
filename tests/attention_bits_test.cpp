// Line 16 of the contract: what a row's bits may depend on, and what not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"
#include "support/full_call.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::FullCall;
using test::Inputs;
using test::Kind;
using test::Layout;
using test::MaskData;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

template <class T>
struct Results {
  using A = AccumulationType<T>;
  TestTensor<T> out;
  TestTensor<A> weights, log_sum_exp;

  explicit Results(const Sizes& sizes, Layout layout = Layout::contiguous)
      : out(sizes.out(), layout),
        weights(sizes.scores(), layout),
        log_sum_exp(sizes.rows(), layout) {}
  AttentionOutputs<A> extra() { return {weights.view(), log_sum_exp.view()}; }
};

template <class T>
Results<T> run(const Sizes& sizes, const Inputs<T>& in, const AnyMask& mask,
               const AttentionOptions& options = {}, Layout layout = Layout::contiguous) {
  Results<T> results(sizes, layout);
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out.view(), mask,
                               options, results.extra());
  return results;
}

template <class T>
void expect_same(const Results<T>& a, const Results<T>& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out.view(), b.out.view())) << "out: " << what;
  EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view())) << "weights: " << what;
  EXPECT_TRUE(same_bits(a.log_sum_exp.view(), b.log_sum_exp.view())) << "lse: " << what;
}

/// The forms and ways to split the work: few rows, several blocks of rows, split keys.
std::vector<Sizes> bit_sizes() {
  return {{2, 4, 2, 2, 3, 37, 9, 6},
          {2, 6, 3, 3, 31, 150, 20, 33},
          {1, 2, 1, 1, 99, 20, 5, 900},
          {1, 4, 2, 4, 2, 4200, 4, 5},
          {1, 2, 1, 1, 10, 4200, 4, 5}};
}

template <class T>
class BitsOf : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double, bfloat16>;
TYPED_TEST_SUITE(BitsOf, ElementTypes, test::TypeNames);

/// Runs its tasks on the calling thread, last index first, and claims any concurrency.
class BackwardExecutor : public Executor {
 public:
  explicit BackwardExecutor(int concurrency) : concurrency_(concurrency) {}
  int concurrency() const override { return concurrency_; }
  void parallel_for(Index count, void (*task)(void*, Index), void* context) override {
    for (Index i = count; i-- > 0;) task(context, i);
  }

 private:
  int concurrency_;
};

/// Runs each task on a thread of its own, all at once.
class ThreadPerTaskExecutor : public Executor {
 public:
  int concurrency() const override { return 5; }
  void parallel_for(Index count, void (*task)(void*, Index), void* context) override {
    std::vector<std::thread> threads;
    for (Index i = 0; i < count; ++i) threads.emplace_back(task, context, i);
    for (std::thread& thread : threads) thread.join();
  }
};

TYPED_TEST(BitsOf, DoNotDependOnTheExecutor) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 81);
    const Results<TypeParam> expected = run(sizes, in, call.mask(), call.options);
    const auto check = [&](Executor& executor, const std::string& what) {
      AttentionOptions options = call.options;
      options.executor = &executor;
      expect_same(run(sizes, in, call.mask(), options), expected, what);
    };
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      for (int repeat = 0; repeat < (threads == 4 ? 5 : 1); ++repeat) {
        check(pool, "ThreadPool of " + std::to_string(threads));
      }
      BackwardExecutor backward(threads);
      check(backward, "BackwardExecutor of " + std::to_string(threads));
    }
    ThreadPerTaskExecutor thread_per_task;
    check(thread_per_task, "ThreadPerTaskExecutor");
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheWorkspace) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 82);
    const Results<TypeParam> expected = run(sizes, in, call.mask(), call.options);
    const std::size_t bytes =
        attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), call.mask(), call.options);
    for (const std::size_t shift : {0u, 1u, 3u, 16u, 63u}) {
      for (const int fill : {0x00, 0xFF, 0x7F}) {  // zeros, NaN, huge numbers
        std::vector<char> memory(bytes + shift + 1000, static_cast<char>(fill));
        AttentionOptions options = call.options;
        options.workspace = {memory.data() + shift, bytes + 500};
        expect_same(run(sizes, in, call.mask(), options), expected,
                    "workspace at " + std::to_string(shift));
        for (std::size_t i = bytes + shift + 500; i < memory.size(); ++i) {
          ASSERT_EQ(memory[i], static_cast<char>(fill)) << "written behind the workspace";
        }
        for (std::size_t i = 0; i < shift; ++i) ASSERT_EQ(memory[i], static_cast<char>(fill));
      }
    }
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheLayout) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<TypeParam> in(sizes, 83);
    const Results<TypeParam> expected = run(sizes, in, call.mask(), call.options);
    for (const Layout a : test::kAllLayouts) {
      expect_same(run(sizes, Inputs<TypeParam>(sizes, 83, a), call.mask(), call.options, a),
                  expected, "all tensors in one layout");
      // Each tensor in another.
      const auto other = [&](int shift) {
        return test::kAllLayouts[(static_cast<int>(a) + shift) % 7];
      };
      const Inputs<TypeParam> mixed(sizes, 83, a, other(2), other(3));
      expect_same(run(sizes, mixed, call.mask(), call.options, other(5)), expected,
                  "tensors in different layouts");
    }
  }
}

// float inputs give double the same numbers as double inputs: conversion is exact and happens
// before anything else.
TEST(Bits, OfTheSameNumbersInAnotherType) {
  for (const Sizes& sizes : bit_sizes()) {
    const Inputs<half> in(sizes, 84);
    Inputs<float> wide(sizes, 84);
    const auto widen = [](const auto& from) {
      return
          [&](Index b, Index h, Index i, Index d) { return static_cast<float>(from(b, h, i, d)); };
    };
    wide.q.fill(widen(in.q));
    wide.k.fill(widen(in.k));
    wide.v.fill(widen(in.v));
    TestTensor<float> a(sizes.out()), b(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), a.view());
    scaled_dot_product_attention(wide.q.view(), wide.k.view(), wide.v.view(), b.view());
    EXPECT_TRUE(same_bits(a.view(), b.view()));
  }
}

TYPED_TEST(BitsOf, DoNotDependOnTheBatchSize) {
  for (Sizes sizes : bit_sizes()) {
    sizes.batch = 3;
    const FullCall call(sizes, false);
    const Inputs<TypeParam> in(sizes, 85);
    const Results<TypeParam> all = run(sizes, in, call.mask(), call.options);
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
    const Results<TypeParam> all = run(sizes, in, call.mask(), call.options);
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
    const Results<TypeParam> expected = run(sizes, in, call.mask(), call.options);
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
    const Results<T> expected = run(sizes, in, call.mask(), call.options);
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
        const Results<T> results = run(sizes, changed, call.mask(), call.options);
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
      const Results<TypeParam> r = run(sizes, in, no_mask(), options);
      const Index group = sizes.query_heads / sizes.key_heads;
      test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
        if (sizes.key_heads != sizes.value_heads) return;
        EXPECT_TRUE(same_bits(r.out(b, h, i, d), r.out(b, h / group * group, 0, d)))
            << detail::name_of(set) << " (" << b << ", " << h << ", " << i << ", " << d << ")";
      });
      test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
        EXPECT_TRUE(
            same_bits(r.log_sum_exp(b, h, i, 0), r.log_sum_exp(b, h / group * group, 0, 0)));
      });
    }
  }
}

// A mask that skips tiles and one that is looked up in each of them, of the same keys.
TYPED_TEST(BitsOf, AreThoseOfTheSameKeysByAnotherMask) {
  // The masks do not know the element type: every instruction set in float, the best in the others.
  const std::vector<InstructionSet> sets = std::is_same_v<TypeParam, float>
                                               ? test::instruction_sets()
                                               : std::vector<InstructionSet>{InstructionSet::best};
  for (const InstructionSet set : sets) {
    for (const Sizes& sizes : bit_sizes()) {
      const Index offset = sizes.key_length - sizes.query_length;
      const Inputs<TypeParam> in(sizes, 91);
      AttentionOptions options;
      options.query_offset = offset;
      options.dropout = {0.1, 2, 3};
      options.instruction_set = set;
      const auto check = [&](const AnyMask& mask, const std::string& what) {
        TestTensor<bool> allowed(sizes.scores()), blocked(sizes.scores());
        TestTensor<TypeParam> bias(sizes.scores());
        const auto allows = [&](Index b, Index h, Index i, Index j) {
          return mask.allows({b, h, i, j, i + offset});
        };
        allowed.fill(allows);
        blocked.fill([&](Index b, Index h, Index i, Index j) { return !allows(b, h, i, j); });
        bias.fill([&](Index b, Index h, Index i, Index j) {
          return allows(b, h, i, j) ? TypeParam(0) : -test::infinity<TypeParam>();
        });
        const Results<TypeParam> expected = run(sizes, in, mask, options);
        expect_same(run(sizes, in, keep_where(allowed.view()), options), expected,
                    what + " by keep_where");
        expect_same(run(sizes, in, drop_where(blocked.view()), options), expected,
                    what + " by drop_where");
        expect_same(run(sizes, in, add_bias(bias.view()), options), expected,
                    what + " by add_bias");
        expect_same(
            run(sizes, in, keep_if([&](ScorePosition at) { return mask.allows(at); }), options),
            expected, what + " by keep_if");
        expect_same(run(sizes, in, mask & no_mask(), options), expected, what + " by &");
      };
      check(causal(), "causal");
      check(sliding_window(20, 3), "sliding_window");
      check(key_lengths(sizes.key_length / 2 + 1), "key_lengths");
      check(causal() & sliding_window(9, kUnlimited), "causal and window");
    }
  }
}

TEST(Bits, OfSse2AreThoseOfGeneric) {
  AttentionOptions options;
  options.instruction_set = InstructionSet::sse2;
  if (!detail::is_available(InstructionSet::sse2, active_instruction_set())) {
    GTEST_SKIP() << "not an x86";
  }
  const Sizes sizes = bit_sizes()[1];
  const Inputs<float> in(sizes, 92);
  const Results<float> sse2 = run(sizes, in, no_mask(), options);
  options.instruction_set = InstructionSet::generic;
  expect_same(run(sizes, in, no_mask(), options), sse2, "sse2");
  options.instruction_set = InstructionSet::best;
  const Results<float> best = run(sizes, in, no_mask(), options);
  options.instruction_set = active_instruction_set();
  expect_same(run(sizes, in, no_mask(), options), best, "best");
}

// ---- What may run at the same time.

TEST(Concurrency, ManyCallersShareAPoolAndTheirInputs) {
  const Sizes sizes = bit_sizes()[1];
  const FullCall call(sizes);
  const Inputs<float> in(sizes, 93);
  const Results<float> expected = run(sizes, in, call.mask(), call.options);
  ThreadPool pool(3);
  AttentionOptions options = call.options;
  options.executor = &pool;
  std::vector<std::thread> callers;
  std::vector<int> wrong(4);
  for (std::size_t caller = 0; caller < wrong.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        const Results<float> results = run(sizes, in, call.mask(), options);
        wrong[caller] += !same_bits(results.out.view(), expected.out.view());
        wrong[caller] += !same_bits(results.weights.view(), expected.weights.view());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int w : wrong) EXPECT_EQ(w, 0);
}

TEST(Concurrency, ACallMayRunInsideATaskOfItsPool) {
  const Sizes sizes = bit_sizes()[0];
  const Inputs<float> in(sizes, 94);
  const Results<float> expected = run(sizes, in, no_mask());
  ThreadPool pool(3);
  AttentionOptions options;
  options.executor = &pool;
  std::vector<int> same(10);
  test::parallel_for(pool, 10, [&](Index i) {
    const Results<float> results = run(sizes, in, no_mask(), options);
    same[static_cast<std::size_t>(i)] = bool(same_bits(results.out.view(), expected.out.view()));
  });
  for (const int s : same) EXPECT_EQ(s, 1);
}

/// Keys and values as T against the same numbers as float, for every row count around the forms'
/// limits.
template <class T>
void expect_the_bits_of_float_storage() {
  for (const InstructionSet set : test::instruction_sets()) {
    AttentionOptions options;
    options.instruction_set = set;
    for (const Index queries : {1, 2, 3, 4, 7, 15, 16, 31, 33}) {
      for (const Index dim : {1, 7, 16, 40, 65}) {
        Tensor4Buffer<float> q({1, 2, queries, dim}), out(q.shape()), expected(q.shape());
        Tensor4Buffer<T> k({1, 2, 133, dim}), v(k.shape());
        Tensor4Buffer<float> wide_k(k.shape()), wide_v(v.shape());
        for (Index i = 0; i < q.size(); ++i) {
          q.data()[i] = static_cast<float>(test::uniform(1, static_cast<std::uint64_t>(i)));
        }
        for (Index i = 0; i < k.size(); ++i) {
          const auto n = static_cast<std::uint64_t>(i);
          k.data()[i] = test::to<T>(test::uniform(2, n));
          v.data()[i] = test::to<T>(test::uniform(3, n));
          wide_k.data()[i] = static_cast<float>(k.data()[i]);
          wide_v.data()[i] = static_cast<float>(v.data()[i]);
        }
        scaled_dot_product_attention(q, k, v, out, no_mask(), options);
        scaled_dot_product_attention(q, wide_k, wide_v, expected, no_mask(), options);
        EXPECT_TRUE(same_bits(std::as_const(out).view(), std::as_const(expected).view()))
            << queries << " queries, dim " << dim << ", " << detail::name_of(set);
      }
    }
  }
}

// 16-bit rows are read in place or converted first, by the number of rows: never with other sums.
TEST(Bits, KeysAndValuesOf16BitsAreTheFloatsTheyStandFor) {
  expect_the_bits_of_float_storage<half>();
  expect_the_bits_of_float_storage<bfloat16>();
}

// A sum of which only a vanishing negative term is left is -0, until any key of weight 0 is added:
// a dropped key would show in the sign.
TEST(Bits, AVanishedSumHasNoSign) {
  for (const Index queries : {1, 20}) {
    Tensor4Buffer<float> q({1, 1, queries, 1}), k({1, 1, 3, 1}), v({1, 1, 3, 1});
    for (Index i = 0; i < queries; ++i) q.view()(0, 0, i, 0) = 1;
    k.view()(0, 0, 1, 0) = -20;
    v.view()(0, 0, 1, 0) = -std::numeric_limits<float>::denorm_min();
    v.view()(0, 0, 2, 0) = 1;
    const bool keep[] = {true, true, false};
    const auto by_length = scaled_dot_product_attention(q, k, v, key_lengths(2));
    const auto by_tensor = scaled_dot_product_attention(
        q, k, v, keep_where(Tensor4<const bool>(keep, Shape4{1, 1, 1, 3})));
    EXPECT_TRUE(same_bits(by_length.output.view(), by_tensor.output.view())) << queries;
    EXPECT_TRUE(same_bits(by_length.output.view()(0, 0, 0, 0), 0.0f)) << queries;
  }
}

}  // namespace
}  // namespace attn

// options.allow_bf16_weights: what bits may depend on.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/kv_cache.hpp"
#include "attn/thread_pool.hpp"
#include "bf16_weights_test/matrix_form.hpp"
#include "support/full_call.hpp"
#include "support/oracle.hpp"
#include "support/plain_tiles.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using test::attend_with;
using test::expect_same;
using test::FullCall;
using test::Inputs;
using test::Layout;
using test::Results;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

TEST_P(Bf16Weights, BitsDoNotDependOnExecutorOrWorkspace) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 209);
    const Results<float> expected = run(sizes, in, call.mask(), call.options);
    AttentionOptions options = call.options;
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      options.executor = &pool;
      expect_same(run(sizes, in, call.mask(), options), expected, "threads");
    }
    options.executor = nullptr;
    for (const int fill : {0x00, 0xFF, 0x7F}) {  // zeros, NaN, huge numbers
      std::vector<char> memory(std::size_t{4} << 20, static_cast<char>(fill));
      options.workspace = {memory.data() + 3, memory.size() - 3};
      expect_same(run(sizes, in, call.mask(), options), expected, "workspace");
    }
  }
}

TEST_P(Bf16Weights, BitsDoNotDependOnTheLayout) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Results<float> expected =
        run(sizes, Inputs<bfloat16>(sizes, 210), call.mask(), call.options);
    for (const Layout layout : test::kAllLayouts) {
      const Inputs<bfloat16> in(sizes, 210, layout);
      expect_same(run(sizes, in, call.mask(), call.options, layout), expected, "layout");
    }
  }
}

TEST_P(Bf16Weights, BitsDoNotDependOnTheBatchSize) {
  for (Sizes sizes : bit_sizes()) {
    sizes.batch = 2;
    const FullCall call(sizes, false);
    const Inputs<bfloat16> in(sizes, 211);
    const Results<float> all = run(sizes, in, call.mask(), call.options);
    sizes.batch = 1;
    const FullCall single(sizes, false);
    for (Index b = 0; b < 2; ++b) {
      TestTensor<float> out(sizes.out());
      attend_with<float>(GetParam(), in.q.view().slice_batch(b, 1), in.k.view().slice_batch(b, 1),
                         in.v.view().slice_batch(b, 1), out.view(), single.mask(), single.options);
      EXPECT_TRUE(same_bits(out.view(), all.out.view().slice_batch(b, 1)));
    }
  }
}

TEST_P(Bf16Weights, BitsDoNotDependOnWhatIsAskedFor) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 212);
    const Results<float> all = run(sizes, in, call.mask(), call.options);
    Results<float> results(sizes);
    attend_with<float>(GetParam(), in.q.view(), in.k.view(), in.v.view(), results.out.view(),
                       call.mask(), call.options);
    EXPECT_TRUE(same_bits(results.out.view(), all.out.view()));
  }
}

TEST_P(Bf16Weights, BitsDoNotDependOnOtherRows) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 213);
    const Results<float> expected = run(sizes, in, call.mask(), call.options);
    const Index head = 1, query = sizes.query_length / 2;
    for (const bfloat16 other : {bfloat16(0.0f), bfloat16(6e4f), test::quiet_nan<bfloat16>()}) {
      Inputs<bfloat16> changed = in;
      test::for_each_index(sizes.q(), [&](Index b, Index h, Index i, Index d) {
        if (h != head || i != query) changed.q(b, h, i, d) = other;
      });
      const Results<float> results = run(sizes, changed, call.mask(), call.options);
      test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
        if (h != head || i != query) return;
        EXPECT_TRUE(same_bits(results.out(b, h, i, d), expected.out(b, h, i, d)));
      });
    }
  }
}

// A mask that skips chunks of keys and one that is looked up in each of them, of the same keys.
TEST_P(Bf16Weights, BitsAreThoseOfTheSameKeysByAnotherMask) {
  for (const Sizes& sizes : bit_sizes()) {
    const Index offset = sizes.key_length - sizes.query_length;
    const Inputs<bfloat16> in(sizes, 214);
    AttentionOptions options;
    options.query_offset = offset;
    const auto check = [&](const AnyMask& mask, const std::string& what) {
      TestTensor<bool> allowed(sizes.scores());
      allowed.fill([&](Index b, Index h, Index i, Index j) {
        return mask.allows({b, h, i, j, i + offset});
      });
      expect_same(run(sizes, in, keep_where(allowed.view()), options),
                  run(sizes, in, mask, options), what);
    };
    check(causal(), "causal");
    check(sliding_window(20, 3), "sliding_window");
    check(sliding_window(40, 0), "causal window");
    check(key_lengths(sizes.key_length / 2 + 1), "key_lengths");
  }
}

// The smallest sums: one that vanishes below zero is -0, until another chunk of absent keys adds 0.
TEST_P(Bf16Weights, BitsOfVanishingSumsAreThoseOfTheSameKeysByAnotherMask) {
  const Sizes sizes{1, 1, 1, 1, 96, 96, 4, 1};
  Inputs<bfloat16> in(sizes, 215);
  in.q.fill_value(bfloat16(0));  // all weights are equal
  in.v.fill_value(bfloat16(0));
  in.v(0, 0, 0, 0) = bfloat16(-1.5f * 0x1p-126f);
  in.v(0, 0, 32, 0) = bfloat16(0x1p-126f);
  TestTensor<bool> allowed(sizes.scores());
  allowed.fill([](Index, Index, Index i, Index j) { return j <= i; });
  const Results<float> results = run(sizes, in, causal());
  expect_same(results, run(sizes, in, keep_where(allowed.view())), "causal");
  EXPECT_TRUE(same_bits(results.out(0, 0, 63, 0), 0.0f));
}

// ---- Where keys come from.

TEST_P(Bf16Weights, OfCachesHaveTheBitsOfWholeTensors) {
  const Sizes sizes{2, 4, 2, 2, 40, 150, 20, 33};
  const Inputs<bfloat16> in(sizes, 215);
  const AnyMask mask(causal_bottom_right() & sliding_window(60, 0));
  const Results<float> expected = run(sizes, in, mask);
  const PerBatch past = sizes.key_length - sizes.query_length;
  const auto check = [&](const auto& cache, const char* what) {
    Results<float> results(sizes);
    AttentionOutputs<float> extra;
    extra.log_sum_exp = results.log_sum_exp.view();
    const detail::KeyValueSource source = cache.source();
    attend_with<float>(GetParam(), in.q.view(), source, &past, results.out.view(), mask, {}, extra);
    EXPECT_TRUE(same_bits(results.out.view(), expected.out.view())) << what;
    EXPECT_TRUE(same_bits(results.log_sum_exp.view(), expected.log_sum_exp.view())) << what;
  };
  KeyValueCache<bfloat16> contiguous(2, 2, 200, 20, 33);
  contiguous.append(in.k.view(), in.v.view());
  check(contiguous, "contiguous");
  PagedKeyValueCache<bfloat16> paged(40, 9, 2, 2, 20, 33);
  paged.append(in.k.view(), in.v.view());
  check(paged, "paged");
  RollingKeyValueCache<bfloat16> rolling(2, 2, 101, 20, 33);  // holds keys 49 to 149
  rolling.append(in.k.view(), in.v.view());
  check(rolling, "rolling");
}

}  // namespace
}  // namespace attn

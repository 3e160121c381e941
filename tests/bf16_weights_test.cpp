// options.allow_bf16_weights: the matrix form of attention, over every matrix unit: the CPU's where
// it has them, else their models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/kv_cache.hpp"
#include "attn/thread_pool.hpp"
#include "support/executor_checks.hpp"
#include "support/full_call.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"
#include "support/plain_tiles.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using test::attend_with;
using test::FullCall;
using test::Inputs;
using test::Kind;
using test::Layout;
using test::MaskData;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

struct Results {
  TestTensor<float> out, weights, log_sum_exp;

  explicit Results(const Sizes& sizes, Layout layout = Layout::contiguous)
      : out(sizes.out(), layout),
        weights(sizes.scores(), layout),
        log_sum_exp(sizes.rows(), layout) {}
  AttentionOutputs<float> extra() { return {weights.view(), log_sum_exp.view()}; }
};

/// Runs over every matrix unit.
class Bf16Weights : public testing::TestWithParam<const detail::MatrixUnit*> {
 protected:
  Results run(const Sizes& sizes, const Inputs<bfloat16>& in, const AnyMask& mask,
              const AttentionOptions& options = {}, Layout layout = Layout::contiguous) const;
  void expect_accurate(const Sizes& sizes, const Inputs<bfloat16>& in, const AnyMask& mask,
                       const test::Formula& formula, const AttentionOptions& options,
                       Layout layout = Layout::contiguous) const;
};
INSTANTIATE_TEST_SUITE_P(Units, Bf16Weights, testing::ValuesIn(test::matrix_units()),
                         [](const auto& unit) { return std::string(unit.param->name); });

Results Bf16Weights::run(const Sizes& sizes, const Inputs<bfloat16>& in, const AnyMask& mask,
                         const AttentionOptions& options, Layout layout) const {
  Results results(sizes, layout);
  EXPECT_TRUE(attend_with<float>(GetParam(), in.q.view(), in.k.view(), in.v.view(),
                                 results.out.view(), mask, options, results.extra()))
      << "not in the matrix form: " << sizes;
  return results;
}

void expect_same(const Results& a, const Results& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out.view(), b.out.view())) << "out: " << what;
  EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view())) << "weights: " << what;
  EXPECT_TRUE(same_bits(a.log_sum_exp.view(), b.log_sum_exp.view())) << "lse: " << what;
}

// ---- Accuracy.

/// Holds a call to attention by the book, entry by entry. With u = 2^-24:
///
///   a score is off by       e = u (18 + Dk / 32 + 3) |scale| max(|q| |k|) Dk: each product
///                           passes a chain of 16, the sums of two chains and of the chunks before,
///                           scale and bias (softcap only shrinks errors)
///   a weight, relatively,   by 2 e + 2 u (6 + 3 S): its own score and those of the denominator,
///                           the exponential and what the float kernels are granted
///   the output by           (2^-8 + that + u (18 + Sk / 16)) sum |weight v|: the weight's
///                           rounding, and the roundings that a product passes, rescaling among
///                           them
///
/// Units of dot products sum in a single chain: a product passes up to Dk or Sk roundings more.
void Bf16Weights::expect_accurate(const Sizes& sizes, const Inputs<bfloat16>& in,
                                  const AnyMask& mask, const test::Formula& formula,
                                  const AttentionOptions& options, Layout layout) const {
  const auto q = test::in_double(in.q.view()), k = test::in_double(in.k.view());
  const auto v = test::in_double(in.v.view());
  Tensor4Buffer<double> magnitudes(v.shape());
  for (Index i = 0; i < v.size(); ++i) magnitudes.data()[i] = std::abs(v.data()[i]);
  const test::Answer<double> exact = test::answer_in<double>(q, k, v, formula, options);
  const test::Answer<double> sums = test::answer_in<double>(q, k, magnitudes, formula, options);

  const double u = 0x1p-24, dims = static_cast<double>(sizes.key_dim);
  const double scale =
      options.scale ? std::abs(*options.scale) : 1 / std::sqrt((std::max)(1.0, dims));
  const double product =
      static_cast<double>(test::largest_magnitude(q.view()) * test::largest_magnitude(k.view()));
  const double keys = static_cast<double>(sizes.key_length);
  const double chain = &test::model_of(*GetParam()) == &test::plain_dots() ? 1 : 0;
  const double score_error = u * (21 + dims / 32 + chain * dims) * scale * product * dims;
  const double weight_error =
      2 * score_error + 2 * u * (6 + 3 * static_cast<double>(exact.largest_score)) + u * keys;
  const double out_error = 0x1p-8 + weight_error + u * (18 + keys / 16 + chain * keys);

  const Results actual = run(sizes, in, mask, options, layout);
  int failures = 0;
  const auto hold = [&](const char* what, double x, double y, double bar) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    if (!(std::abs(x - y) <= bar) && ++failures <= 3) {
      ADD_FAILURE() << what << " is " << x << ", the reference " << y << ": off by "
                    << std::abs(x - y) << ", allowed " << bar << "; " << sizes;
    }
  };
  test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
    hold("out", static_cast<double>(actual.out(b, h, i, d)), exact.out(b, h, i, d),
         out_error * sums.out(b, h, i, d) + 0x1p-120);
  });
  test::for_each_index(sizes.scores(), [&](Index b, Index h, Index i, Index j) {
    const double weight = exact.weights(b, h, i, j);
    hold("weight", static_cast<double>(actual.weights(b, h, i, j)), weight,
         weight_error * weight + 0x1p-100);
  });
  test::for_each_index(sizes.rows(), [&](Index b, Index h, Index i, Index) {
    hold("log_sum_exp", static_cast<double>(actual.log_sum_exp(b, h, i, 0)),
         exact.log_sum_exp(b, h, i, 0), weight_error + u * 32);
  });
  EXPECT_TRUE(actual.out.gaps_are_untouched());
  EXPECT_TRUE(actual.weights.gaps_are_untouched());
  EXPECT_TRUE(actual.log_sum_exp.gaps_are_untouched());
}

/// One row tile and several, rows of several heads in one, odd dims and lengths, chunks of keys
/// that are not whole, several key tiles, a row block that is not whole, more queries than keys.
std::vector<Sizes> matrix_sizes() {
  return {{2, 4, 2, 2, 9, 11, 1, 3},    {1, 6, 3, 2, 31, 65, 31, 33},
          {1, 2, 1, 1, 70, 33, 33, 16}, {1, 2, 1, 1, 40, 300, 65, 1},
          {2, 2, 2, 1, 21, 6, 64, 17},  {1, 1, 1, 1, 33, 520, 16, 40}};
}

TEST_P(Bf16Weights, AgreeWithTheReferenceUnderEveryMask) {
  for (const Sizes& sizes : matrix_sizes()) {
    const Index offset = sizes.key_length - sizes.query_length;
    const MaskData<float> data(sizes, offset);
    const Inputs<bfloat16> in(sizes, 201);
    for (const Kind& kind : test::kinds_of(data, sizes, offset)) {
      if (kind.is_top_left) continue;
      SCOPED_TRACE(kind.name);
      AttentionOptions options;
      options.query_offset = offset;
      expect_accurate(sizes, in, kind.mask, kind.formula, options);
    }
  }
}

TEST_P(Bf16Weights, AgreeWithTheReferenceUnderEveryOption) {
  for (const Sizes& sizes : matrix_sizes()) {
    const Index offset = sizes.key_length - sizes.query_length;
    const MaskData<float> data(sizes, offset);
    const std::vector<Kind> kinds = test::kinds_of(data, sizes, offset);
    const auto causal_kind = std::find_if(kinds.begin(), kinds.end(),
                                          [](const Kind& kind) { return kind.name == "causal"; });
    ASSERT_NE(causal_kind, kinds.end());
    std::vector<double> sinks(static_cast<std::size_t>(sizes.query_heads), 0.7);
    AttentionOptions options;
    options.query_offset = offset;
    options.softcap = 2;
    options.sinks = sinks;
    options.dropout = {0.3, 5, 6};
    ThreadPool pool(3);
    options.executor = &pool;
    for (const double scale : {0.3, -0.25, 0.0, 2.0}) {  // the powers of two go into the queries
      options.scale = scale;
      // The stages between the products are those of the float kernels, of any table.
      for (const InstructionSet set : test::instruction_sets()) {
        options.instruction_set = set;
        const Inputs<bfloat16> in(sizes, 202, Layout::mixed);
        expect_accurate(sizes, in, causal_kind->mask, causal_kind->formula, options, Layout::mixed);
      }
    }
  }
}

TEST_P(Bf16Weights, AgreeWithTheReferenceInEveryDim) {
  for (const Index dim : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 128}) {
    for (const Index value_dim : {1, 16, 31, 64, 65, 128}) {
      const Sizes sizes{1, 1, 1, 1, 17, 45, dim, value_dim};
      expect_accurate(sizes, Inputs<bfloat16>(sizes, 203), no_mask(), {}, {});
    }
  }
  const Sizes wide{1, 1, 1, 1, 40, 150, 600, 500};
  expect_accurate(wide, Inputs<bfloat16>(wide, 204), no_mask(), {}, {});
}

// The goal for numbers as networks have them: a relative error (Frobenius) of at most 2.5e-3.
TEST_P(Bf16Weights, AreWithinTheStatedRelativeError) {
  for (const Index dim : {64, 128}) {
    const Sizes sizes{1, 1, 1, 1, 96, 512, dim, dim};
    Inputs<bfloat16> in(sizes, 205);
    const auto normal = [](std::uint64_t seed, const Shape4& shape) {
      return [seed, shape](Index b, Index h, Index i, Index d) {
        double sum = 0;  // of 12 uniform numbers of variance 1/3
        for (std::uint64_t draw = 0; draw < 12; ++draw) {
          sum += test::uniform(seed + draw, test::linear_index(shape, b, h, i, d));
        }
        return test::to<bfloat16>(sum / 2);
      };
    };
    in.q.fill(normal(1, sizes.q()));
    in.k.fill(normal(21, sizes.k()));
    in.v.fill(normal(41, sizes.v()));
    const test::Answer<double> exact =
        test::answer_in<double>(test::in_double(in.q.view()), test::in_double(in.k.view()),
                                test::in_double(in.v.view()), {}, {});
    TestTensor<float> out(sizes.out());
    attend_with<float>(GetParam(), in.q.view(), in.k.view(), in.v.view(), out.view());
    double error = 0, norm = 0;
    test::for_each_index(sizes.out(), [&](Index b, Index h, Index i, Index d) {
      const double x = static_cast<double>(out(b, h, i, d)), y = exact.out(b, h, i, d);
      error += (x - y) * (x - y);
      norm += y * y;
    });
    EXPECT_LE(std::sqrt(error / norm), 2.5e-3);
    EXPECT_GE(std::sqrt(error / norm), 2.5e-4);  // float kernels are far below: these weights round
  }
}

// ---- Special values.

TEST_P(Bf16Weights, LetNothingOfAnAbsentKeyThrough) {
  for (const Sizes& sizes : matrix_sizes()) {
    const Inputs<bfloat16> in(sizes, 206);
    const auto is_absent = [](Index j) { return j % 3 == 1; };
    const AnyMask mask(drop_if([=](ScorePosition at) { return is_absent(at.key); }));
    AttentionOptions options;
    options.query_offset = 0;
    const Results expected = run(sizes, in, mask, options);
    for (const bfloat16 bad : {test::quiet_nan<bfloat16>(), test::infinity<bfloat16>()}) {
      Inputs<bfloat16> changed = in;
      const auto spoil = [&](TestTensor<bfloat16>& tensor) {
        test::for_each_index(tensor.shape(), [&](Index b, Index h, Index j, Index d) {
          if (is_absent(j)) tensor(b, h, j, d) = bad;
        });
      };
      spoil(changed.k);
      spoil(changed.v);
      expect_same(run(sizes, changed, mask, options), expected, "spoilt absent keys");
    }
  }
}

// Under a causal mask the rows before the key keep their bits, the others follow IEEE.
TEST_P(Bf16Weights, SpreadWhatIsVisibleAndNotFinite) {
  const Sizes sizes{1, 1, 1, 1, 100, 300, 20, 5};
  const Inputs<bfloat16> in(sizes, 207);
  const Index bad_key = 250, offset = 200;
  const Results expected = run(sizes, in, causal_bottom_right());
  Inputs<bfloat16> changed = in;
  changed.v(0, 0, bad_key, 2) = test::infinity<bfloat16>();
  changed.v(0, 0, bad_key, 4) = test::quiet_nan<bfloat16>();
  const Results actual = run(sizes, changed, causal_bottom_right());
  test::for_each_index(sizes.out(), [&](Index, Index, Index i, Index d) {
    const float x = actual.out(0, 0, i, d);
    if (i + offset < bad_key || (d != 2 && d != 4)) {
      EXPECT_TRUE(same_bits(x, expected.out(0, 0, i, d))) << i << ", " << d;
    } else if (d == 2) {
      EXPECT_TRUE(same_bits(x, test::infinity<float>())) << i;
    } else {
      EXPECT_TRUE(std::isnan(x)) << i;
    }
  });
  EXPECT_TRUE(same_bits(actual.log_sum_exp.view(), expected.log_sum_exp.view()));

  // A score of NaN makes its row NaN, and no other.
  Inputs<bfloat16> bad_query = in;
  bad_query.q(0, 0, 37, 0) = test::quiet_nan<bfloat16>();
  const Results with_nan = run(sizes, bad_query, causal_bottom_right());
  test::for_each_index(sizes.out(), [&](Index, Index, Index i, Index d) {
    if (i == 37) {
      EXPECT_TRUE(std::isnan(with_nan.out(0, 0, i, d)));
    } else {
      EXPECT_TRUE(same_bits(with_nan.out(0, 0, i, d), expected.out(0, 0, i, d)));
    }
  });
}

TEST_P(Bf16Weights, OfRowsWithoutKeysAreZero) {
  const Sizes sizes{1, 1, 1, 1, 70, 40, 20, 5};  // the first 30 rows see nothing
  const Results results = run(sizes, Inputs<bfloat16>(sizes, 208), causal_bottom_right());
  test::for_each_index(sizes.out(), [&](Index, Index, Index i, Index d) {
    if (i >= 30) return;
    EXPECT_TRUE(same_bits(results.out(0, 0, i, d), 0.0f)) << i << ", " << d;
  });
  for (Index i = 0; i < 30; ++i) {
    EXPECT_TRUE(same_bits(results.log_sum_exp(0, 0, i, 0), -test::infinity<float>()));
  }
}

/// The least workspace that a call accepts, from aligned memory on.
template <class Call>
std::size_t least_workspace(char* memory, std::size_t most, const Call& call) {
  std::size_t refused = 0, enough = most;
  while (enough - refused > 1) {
    const std::size_t bytes = refused + (enough - refused) / 2;
    try {
      call(Workspace{memory, bytes});
      enough = bytes;
    } catch (const OptionError&) {
      refused = bytes;
    }
  }
  return enough;
}

// A block of rows whose window lies behind all keys, but in the place of the last key tile.
TEST_P(Bf16Weights, OfBlocksBehindAllKeysStayInTheirMemory) {
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1, 16, 8, 16, 16}, Sizes{1, 2, 1, 1, 300, 40, 20, 33},
                             Sizes{1, 1, 1, 1, 40, 290, 16, 16}}) {
    const Inputs<bfloat16> in(sizes, 231);
    std::vector<char> memory(std::size_t{2} << 20, 'g');
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    char* const aligned = memory.data() + (64 - misaligned) % 64;
    AttentionOptions options;
    options.query_offset = sizes.key_length + 142;
    const auto call = [&](Workspace workspace) {
      options.workspace = workspace;
      return run(sizes, in, sliding_window(4, 0), options);
    };
    const std::size_t least =
        least_workspace(aligned, memory.size() - 64, [&](Workspace workspace) { call(workspace); });
    std::fill(memory.begin(), memory.end(), 'g');
    const Results results = call({aligned, least});
    EXPECT_TRUE(std::all_of(aligned + least, memory.data() + memory.size(), [](char c) {
      return c == 'g';
    })) << sizes;
    EXPECT_EQ(test::largest_magnitude(results.out.view()), 0) << sizes;
  }
}

// ---- Bits.

/// The forms of work: one block of rows, several, split keys.
std::vector<Sizes> bit_sizes() {
  return {
      {2, 6, 3, 3, 31, 150, 20, 33}, {1, 2, 1, 1, 170, 300, 5, 600}, {1, 4, 2, 2, 20, 4200, 4, 5}};
}

TEST_P(Bf16Weights, BitsDoNotDependOnExecutorOrWorkspace) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 209);
    const Results expected = run(sizes, in, call.mask(), call.options);
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
    const Results expected = run(sizes, Inputs<bfloat16>(sizes, 210), call.mask(), call.options);
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
    const Results all = run(sizes, in, call.mask(), call.options);
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
    const Results all = run(sizes, in, call.mask(), call.options);
    Results results(sizes);
    attend_with<float>(GetParam(), in.q.view(), in.k.view(), in.v.view(), results.out.view(),
                       call.mask(), call.options);
    EXPECT_TRUE(same_bits(results.out.view(), all.out.view()));
  }
}

TEST_P(Bf16Weights, BitsDoNotDependOnOtherRows) {
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 213);
    const Results expected = run(sizes, in, call.mask(), call.options);
    const Index head = 1, query = sizes.query_length / 2;
    for (const bfloat16 other : {bfloat16(0.0f), bfloat16(6e4f), test::quiet_nan<bfloat16>()}) {
      Inputs<bfloat16> changed = in;
      test::for_each_index(sizes.q(), [&](Index b, Index h, Index i, Index d) {
        if (h != head || i != query) changed.q(b, h, i, d) = other;
      });
      const Results results = run(sizes, changed, call.mask(), call.options);
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
  const Results results = run(sizes, in, causal());
  expect_same(results, run(sizes, in, keep_where(allowed.view())), "causal");
  EXPECT_TRUE(same_bits(results.out(0, 0, 63, 0), 0.0f));
}

// ---- Where keys come from.

TEST_P(Bf16Weights, OfCachesHaveTheBitsOfWholeTensors) {
  const Sizes sizes{2, 4, 2, 2, 40, 150, 20, 33};
  const Inputs<bfloat16> in(sizes, 215);
  const AnyMask mask(causal_bottom_right() & sliding_window(60, 0));
  const Results expected = run(sizes, in, mask);
  const PerBatch past = sizes.key_length - sizes.query_length;
  const auto check = [&](const auto& cache, const char* what) {
    Results results(sizes);
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

// ---- The matrix unit's state.

/// Counts what is asked of it, and fails where a product comes while it is not ready.
struct WatchedUnit {
  static inline int configured = 0, released = 0, unready = 0;
  static inline bool is_ready = false;

  static const detail::MatrixUnit& unit() {
    configured = released = unready = 0;
    is_ready = false;
    static constexpr detail::MatrixUnit watched = {
        "watched",
        [] {
          ++configured;
          is_ready = true;
        },
        [] {
          ++released;
          is_ready = false;
        },
        [](const float* left, Index left_stride, const float* right, Index right_stride,
           Index lines, Index columns, Index depth, bool is_first, float* out, Index out_stride) {
          unready += !is_ready;
          test::plain_tiles().multiply(left, left_stride, right, right_stride, lines, columns,
                                       depth, is_first, out, out_stride);
        }};
    return watched;
  }
};

TEST(MatrixUnitState, IsHeldForAWorkItem) {
  const Sizes sizes{2, 2, 2, 2, 20, 40, 8, 8};  // four items
  const Inputs<bfloat16> in(sizes, 216);
  TestTensor<float> out(sizes.out());
  attend_with<float>(&WatchedUnit::unit(), in.q.view(), in.k.view(), in.v.view(), out.view());
  EXPECT_EQ(WatchedUnit::configured, 4);
  EXPECT_EQ(WatchedUnit::released, 4);
  EXPECT_EQ(WatchedUnit::unready, 0);
}

TEST(MatrixUnitState, IsHeldAroundUsersFunctions) {
  const Sizes sizes{1, 1, 1, 1, 100, 300, 8, 8};
  const Inputs<bfloat16> in(sizes, 217);
  TestTensor<float> out(sizes.out());
  // A user's function that uses the unit for itself, as a nested call of attention would.
  const auto use = [](auto score, ScorePosition) {
    WatchedUnit::is_ready = false;
    return score;
  };
  attend_with<float>(&WatchedUnit::unit(), in.q.view(), in.k.view(), in.v.view(), out.view(),
                     modify_score(use));
  EXPECT_EQ(WatchedUnit::unready, 0);
  EXPECT_FALSE(WatchedUnit::is_ready);
  attend_with<float>(&WatchedUnit::unit(), in.q.view(), in.k.view(), in.v.view(), out.view(),
                     keep_if([](ScorePosition) {
                       WatchedUnit::is_ready = false;
                       return true;
                     }));
  EXPECT_EQ(WatchedUnit::unready, 0);

  // One that throws.
  const auto fail = [](auto score, ScorePosition at) {
    if (at.query == 90) throw 5;
    return score;
  };
  EXPECT_THROW(attend_with<float>(&WatchedUnit::unit(), in.q.view(), in.k.view(), in.v.view(),
                                  out.view(), modify_score(fail)),
               int);
  EXPECT_EQ(WatchedUnit::released, 1);
  EXPECT_FALSE(WatchedUnit::is_ready);
}

// Few rows have no matrix form, and the same bits with a unit as without.
TEST(Bf16WeightsOption, OfFewRowsStayFloat) {
  const Sizes sizes{1, 3, 1, 1, 5, 300, 40, 20};
  const Inputs<bfloat16> in(sizes, 218);
  TestTensor<float> with(sizes.out()), without(sizes.out());
  attend_with<float>(&WatchedUnit::unit(), in.q.view(), in.k.view(), in.v.view(), with.view());
  attend_with<float>(nullptr, in.q.view(), in.k.view(), in.v.view(), without.view());
  EXPECT_TRUE(same_bits(with.view(), without.view()));
  EXPECT_EQ(WatchedUnit::configured, 0);
}

TEST(Bf16WeightsOption, NeedLessThanTwoMebibytes) {
  for (const Index dim : {1, 64, 128, 256, 511, 512}) {
    for (const Index value_dim : {1, 64, 128, 256, 511, 512}) {
      const Tensor4<const bfloat16> q(nullptr, {1, 0, 5000, dim}), k(nullptr, {1, 1, 5000, dim});
      const Tensor4<const bfloat16> v(nullptr, {1, 1, 5000, value_dim});
      detail::CallShapes shapes("test");
      auto call = detail::describe_call<float>(shapes, detail::TensorRef(q),
                                               {detail::TensorRef(k), detail::TensorRef(v)},
                                               nullptr, detail::TensorRef(), no_mask(), {}, {});
      detail::plan_work(call, &test::plain_tiles());
      EXPECT_NE(call.kernels.matrix_unit, nullptr);
      EXPECT_LT(detail::scratch_bytes(call).total(1), std::size_t{2} << 20) << dim << ", " << value_dim;
    }
  }
}

// ---- The option.

// What the option does not speak of: other types, lower instruction sets, CPUs without the unit.
TEST(Bf16WeightsOption, AreUsedOnlyWhereTheyMayBe) {
  const Sizes sizes{1, 4, 2, 2, 40, 300, 64, 64};
  AttentionOptions options, allowed;
  allowed.allow_bf16_weights = true;
  const auto check = [&](const auto& in, InstructionSet set, const char* what) {
    options.instruction_set = allowed.instruction_set = set;
    TestTensor<float> plain(sizes.out()), with(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), plain.view(), causal(),
                                 options);
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), with.view(), causal(),
                                 allowed);
    EXPECT_TRUE(same_bits(plain.view(), with.view())) << what;
  };
  options.query_offset = allowed.query_offset = 260;
  check(Inputs<float>(sizes, 219), InstructionSet::best, "float");
  check(Inputs<bfloat16, bfloat16, float>(sizes, 219), InstructionSet::best, "values of float");
  for (const InstructionSet set : test::instruction_sets()) {
    if (set == InstructionSet::avx512) continue;
    check(Inputs<bfloat16>(sizes, 219), set, detail::name_of(set));
  }
  if (detail::find_matrix_unit(InstructionSet::best) == nullptr) {
    check(Inputs<bfloat16>(sizes, 219), InstructionSet::best, "no matrix unit");
  }
}

TEST(Bf16WeightsOption, UsesTheCpusUnitWithTheBitsOfItsModel) {
  const detail::MatrixUnit* const unit = detail::find_matrix_unit(InstructionSet::best);
  if (unit == nullptr) {
    GTEST_SKIP() << "this CPU has no matrix unit that gains, or the system refuses it";
  }
  for (const Sizes& sizes : bit_sizes()) {
    const FullCall call(sizes);
    const Inputs<bfloat16> in(sizes, 220);
    AttentionOptions options = call.options;
    options.allow_bf16_weights = true;
    std::vector<char> memory(
        attention_workspace_bytes(in.q.view(), in.k.view(), in.v.view(), call.mask(), options));
    options.workspace = {memory.data(), memory.size()};
    Results results(sizes);
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out.view(),
                                 call.mask(), options, results.extra());
    Results expected(sizes);
    EXPECT_TRUE(attend_with<float>(&test::model_of(*unit), in.q.view(), in.k.view(), in.v.view(),
                                   expected.out.view(), call.mask(), call.options,
                                   expected.extra()));
    expect_same(results, expected, unit->name);
  }
}

}  // namespace
}  // namespace attn

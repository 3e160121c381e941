// options.allow_bf16_weights: what is absent, infinite or NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attn/attention.hpp"
#include "bf16_weights_test/matrix_form.hpp"
#include "support/oracle.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using test::expect_same;
using test::Inputs;
using test::Results;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

TEST_P(Bf16Weights, LetNothingOfAnAbsentKeyThrough) {
  for (const Sizes& sizes : matrix_sizes()) {
    const Inputs<bfloat16> in(sizes, 206);
    const auto is_absent = [](Index j) { return j % 3 == 1; };
    const AnyMask mask(drop_if([=](ScorePosition at) { return is_absent(at.key); }));
    AttentionOptions options;
    options.query_offset = 0;
    const Results<float> expected = run(sizes, in, mask, options);
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
  const Results<float> expected = run(sizes, in, causal_bottom_right());
  Inputs<bfloat16> changed = in;
  changed.v(0, 0, bad_key, 2) = test::infinity<bfloat16>();
  changed.v(0, 0, bad_key, 4) = test::quiet_nan<bfloat16>();
  const Results<float> actual = run(sizes, changed, causal_bottom_right());
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
  const Results<float> with_nan = run(sizes, bad_query, causal_bottom_right());
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
  const Results<float> results = run(sizes, Inputs<bfloat16>(sizes, 208), causal_bottom_right());
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
    const Results<float> results = call({aligned, least});
    EXPECT_TRUE(std::all_of(aligned + least, memory.data() + memory.size(), [](char c) {
      return c == 'g';
    })) << sizes;
    EXPECT_EQ(test::largest_magnitude(results.out.view()), 0) << sizes;
  }
}

}  // namespace
}  // namespace attn

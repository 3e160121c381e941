// options.allow_bf16_weights, the matrix form of attention: its accuracy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "bf16_weights_test/matrix_form.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"
#include "support/plain_tiles.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using test::attend_with;
using test::Inputs;
using test::Kind;
using test::Layout;
using test::MaskData;
using test::Results;
using test::Sizes;
using test::TestTensor;

INSTANTIATE_TEST_SUITE_P(Units, Bf16Weights, testing::ValuesIn(test::matrix_units()),
                         [](const auto& unit) { return std::string(unit.param->name); });

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

}  // namespace
}  // namespace attn

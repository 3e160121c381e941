// The matrix unit's state, and the option that allows its use.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "attn/attention.hpp"
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
using test::Results;
using test::same_bits;
using test::Sizes;
using test::TestTensor;

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
      auto call =
          detail::describe_call<float>(shapes, detail::TensorRef(q), detail::keys_and_values(k, v),
                                       nullptr, detail::TensorRef(), no_mask(), {}, {});
      detail::plan_work(call, &test::plain_tiles());
      EXPECT_NE(call.kernels.matrix_unit, nullptr);
      EXPECT_LT(detail::scratch_bytes(call).total(1), std::size_t{2} << 20)
          << dim << ", " << value_dim;
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
    check(Inputs<bfloat16>(sizes, 219), set, name_of(set));
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
    Results<float> results(sizes);
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), results.out.view(),
                                 call.mask(), options, results.extra());
    Results<float> expected(sizes);
    EXPECT_TRUE(attend_with<float>(&test::model_of(*unit), in.q.view(), in.k.view(), in.v.view(),
                                   expected.out.view(), call.mask(), call.options,
                                   expected.extra()));
    expect_same(results, expected, unit->name);
  }
}

}  // namespace
}  // namespace attn

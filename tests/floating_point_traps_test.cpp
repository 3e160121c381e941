// Programs of audio and trading trap invalid operations and divisions by zero: finite input never
// raises one, masked rows, empty rows and unused lanes included.
#include <gtest/gtest.h>

#include <cfenv>
#include <string>
#include <vector>

#include "attn/attention.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/merge.hpp"
#include "support/mask_kinds.hpp"
#include "support/oracle.hpp"

#if defined(__GLIBC__)

namespace attn {
namespace {

using test::Inputs;
using test::Layout;
using test::MaskData;
using test::Sizes;
using test::TestTensor;

/// Traps for its lifetime: an operation that raises one of these exceptions ends the program.
class Traps {
 public:
  Traps() {
    std::feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(kExceptions);
  }
  ~Traps() {
    fedisableexcept(kExceptions);
    std::feclearexcept(FE_ALL_EXCEPT);
  }

 private:
  static constexpr int kExceptions = FE_INVALID | FE_DIVBYZERO;
};

template <class T>
class TrapsWith : public ::testing::Test {};
using TrapTypes = ::testing::Types<float, double, Eigen::half>;
TYPED_TEST_SUITE(TrapsWith, TrapTypes, test::TypeNames);

TYPED_TEST(TrapsWith, FiniteInputRaisesNothing) {
  using A = AccumulationType<TypeParam>;
  // Few rows, rows of several heads in a tile, more queries than keys (rows that see no key), and
  // keys that are split.
  for (const Sizes& sizes : {Sizes{2, 4, 2, 2, 3, 11, 4, 3}, Sizes{2, 2, 2, 1, 21, 6, 4, 3},
                             Sizes{1, 2, 1, 1, 30, 150, 3, 2}, Sizes{1, 2, 2, 2, 1, 4200, 2, 3}}) {
    const Index offset = sizes.key_length - sizes.query_length;
    const MaskData<TypeParam> data(sizes, offset);
    const Inputs<TypeParam> in(sizes, 70, Layout::padded);  // NaN in the gaps
    for (const test::Kind& kind : test::kinds_of(data, sizes, offset)) {
      if (kind.is_top_left) continue;
      // The library's own masks; a test's lambda may do as it likes.
      if (kind.name.find("modify_score that masks") == 0) continue;
      SCOPED_TRACE(kind.name);
      for (const InstructionSet set : test::instruction_sets()) {
        AttentionOptions options;
        options.instruction_set = set;
        options.query_offset = offset;
        options.softcap = 2;
        options.dropout = {0.25, 1, 2};
        TestTensor<TypeParam> out(sizes.out());
        TestTensor<A> weights(sizes.scores()), log_sum_exp(sizes.rows());
        const Traps traps;
        scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(), kind.mask,
                                     options, {weights.view(), log_sum_exp.view()});
      }
    }
  }
}

TEST(Traps, EmptyRowsAndLargeScoresRaiseNothing) {
  const Sizes sizes{1, 1, 1, 1, 20, 40, 8, 5};
  Inputs<float> in(sizes, 71);
  in.q.fill_uniform(1, 1e15);
  in.k.fill_uniform(2, 1e15);
  for (const Index length : {0, 1, 40}) {
    TestTensor<float> out(sizes.out()), lse(sizes.rows()), merged(sizes.out()), both(sizes.rows());
    const Traps traps;
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                                 key_lengths(length), {}, {{}, lse.view()});
    merge_attention(out.view(), lse.view(), out.view(), lse.view(), merged.view(), both.view());
  }
}

TEST(Traps, LayersRaiseNothing) {
  const MultiHeadAttention<float> layer(24, 3, 5);
  Tensor4Buffer<float> x({2, 1, 7, 24}), out({2, 1, 7, 24});
  const Traps traps;
  layer.forward(x, out, causal());
}

}  // namespace
}  // namespace attn

#endif

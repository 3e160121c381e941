// Tiles of several blocks and vectors, and what is left over, on every instruction set.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/tiles.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::changes;
using test::Formula;
using test::keeps;
using test::TestTensor;

template <class A>
void check_large_tiles(const AnyMask& mask, const Formula& formula, Index query_offset) {
  const RowBlock all{1, 2, 0, 37, query_offset, 0, 74};
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(name_of(set));
    check_tile<A>(mask, formula, all.slice(0, 37), {0, 80}, false, set);
    check_tile<A>(mask, formula, all.slice(3, 48), {5, 71}, false, set);  // of both heads
    check_tile<A>(mask, formula, all.slice(40, 16), {16, 32}, false, set);
  }
}

const Shapes kLarge{2, 2, 37, 80, 3};

TEST(Masks, LargeDenseMasksAgreeOnEveryInstructionSet) {
  for (const test::Layout layout : test::kAllLayouts) {
    for (const Shape4& shape : broadcast_shapes(kLarge)) {
      TestTensor<std::uint8_t> bytes(shape, layout);
      bytes.fill([&](Index b, Index h, Index i, Index j) {
        return test::uniform(8, test::linear_index(shape, b, h, i, j)) < 0 ? 0 : 1 + i * j % 255;
      });
      const auto is_true = [&](Index b, Index h, Index i, Index j) {
        return broadcast_at(bytes, b, h, i, j) != 0;
      };
      const auto is_false = [&](Index b, Index h, Index i, Index j) {
        return !is_true(b, h, i, j);
      };
      check_large_tiles<float>(keep_where(bytes.view()), keeps(is_true), kLarge.offset);
      check_large_tiles<double>(drop_where(bytes.view()), keeps(is_false), kLarge.offset);
    }
  }
}

template <class T>
void check_large_biases(test::Layout layout) {
  for (const Shape4& shape : broadcast_shapes(kLarge)) {
    const TestTensor<T> bias = random_bias<T>(shape, layout);
    check_large_tiles<float>(add_bias(bias.view()), formula_of(bias), kLarge.offset);
    check_large_tiles<double>(add_bias(bias.view()), formula_of(bias), kLarge.offset);
  }
}
TEST(Masks, LargeBiasesAgreeOnEveryInstructionSet) {
  for (const test::Layout layout : test::kAllLayouts) check_large_biases<float>(layout);
  check_large_biases<double>(test::Layout::contiguous);
  check_large_biases<Eigen::half>(test::Layout::contiguous);
  check_large_biases<Eigen::half>(test::Layout::permuted);
  check_large_biases<Eigen::bfloat16>(test::Layout::contiguous);
}

TEST(Masks, AlibiOfLargeTilesAgreesOnEveryInstructionSet) {
  const std::vector<double> slopes = {0.25, 0x1p-6};  // products are exact, fused or not
  // Near the keys, and where float or double count in steps of 4.
  for (const Index offset : {Index{3}, Index{-60}, (Index{1} << 25) + 1, -(Index{1} << 25),
                             (Index{1} << 54) + 1, -(Index{1} << 54)}) {
    const Formula formula = changes([&](auto score, Index, Index h, Index i, Index j) {
      using A = decltype(score);
      const Index p = i + offset;
      return score - static_cast<A>(slopes[static_cast<std::size_t>(h)]) *
                         static_cast<A>(p > j ? p - j : j - p);
    });
    check_large_tiles<float>(alibi(slopes), formula, offset);
    check_large_tiles<double>(alibi(slopes), formula, offset);
  }
}

}  // namespace
}  // namespace attn

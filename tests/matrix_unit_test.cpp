// The matrix units: the rounding that feeds them, and their products by models in plain C++, whose
// bits are those of the CPU's units where it has them.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attn/attention.hpp"
#include "support/oracle.hpp"
#include "support/plain_tiles.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using test::same_bits;

std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  return bits;
}
float from_bits(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, 4);
  return x;
}
std::uint16_t bits_of(bfloat16 x) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, &x, 2);
  return bits;
}
float widen(std::uint32_t upper_half) { return from_bits(upper_half << 16); }

// ---- Rounding to pairs.

/// Numbers of every kind: any bits, ties of either parity, the largest, the subnormal, infinities,
/// NaNs.
std::vector<float> numbers(std::size_t count) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          from_bits(0x3F808000),  // ties, to even below and above
                          from_bits(0x3F818000),
                          from_bits(0x3F808001),
                          from_bits(0x3F817FFF),
                          from_bits(0x00008000),
                          from_bits(0x00007FFF),
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest(),
                          test::infinity<float>(),
                          -test::infinity<float>(),
                          from_bits(0x7FC00000),  // NaNs: one that a rounding up would turn into -0
                          from_bits(0xFFFFFFFF),
                          from_bits(0x7F800001)};
  for (std::uint64_t i = 0; x.size() < count; ++i) {
    x.push_back(
        from_bits(static_cast<std::uint32_t>(test::uniform_below(7, i, std::uint64_t{1} << 32))));
  }
  return x;
}

TEST(PairBfloat16, RoundsAsEigenDoes) {
  for (const InstructionSet set : test::instruction_sets()) {
    for (const Index count : {1, 15, 16, 35, 64}) {
      for (const Index lines : {1, 2, 5, 32}) {
        const Index stride = count + 3;
        std::vector<float> from = numbers(static_cast<std::size_t>(lines * stride));
        std::vector<float> apart(from.size(), 5.0f), in_place = from, fast = from;
        const detail::WidenTable& table = detail::widening(set);
        table.pair_bfloat16(from.data(), lines, count, stride, apart.data(), stride);
        table.pair_bfloat16(in_place.data(), lines, count, stride, in_place.data(), stride);
        table.pair_numbers(fast.data(), lines, count, stride, fast.data(), stride);
        for (Index line = 0; line < lines; line += 2) {
          for (Index i = 0; i < count; ++i) {
            const auto at = [&](Index l) {
              return l < lines ? from[static_cast<std::size_t>(l * stride + i)] : 0.0f;
            };
            const std::size_t place = static_cast<std::size_t>(line / 2 * stride + i);
            const std::uint32_t expected =
                bits_of(bfloat16(at(line))) |
                static_cast<std::uint32_t>(bits_of(bfloat16(at(line + 1)))) << 16;
            ASSERT_EQ(bits_of(apart[place]), expected) << name_of(set);
            ASSERT_EQ(bits_of(in_place[place]), expected) << name_of(set);
            if (!std::isnan(at(line)) && !std::isnan(at(line + 1))) {
              ASSERT_EQ(bits_of(fast[place]), expected) << name_of(set);
            }
          }
          for (Index i = count; i < stride; ++i) {
            ASSERT_EQ(apart[static_cast<std::size_t>(line / 2 * stride + i)], 5.0f);
          }
        }
      }
    }
  }
}

// ---- The product.

/// A matrix of lanes with gaps behind its lines.
struct Lanes {
  Index lines, columns, stride;
  std::vector<float> data;

  Lanes(Index line_count, Index column_count)
      : lines(line_count),
        columns(column_count),
        stride(column_count + 16),
        data(static_cast<std::size_t>(line_count * stride), 3.0f) {}
  float& operator()(Index line, Index column) {
    return data[static_cast<std::size_t>(line * stride + column)];
  }
  template <class F>
  Lanes& fill(const F& f) {
    for (Index line = 0; line < lines; ++line) {
      for (Index column = 0; column < columns; ++column) (*this)(line, column) = f(line, column);
    }
    return *this;
  }
};

/// Pairs of bfloat16 below `limit`.
Lanes pairs(Index lines, Index columns, std::uint64_t seed, double limit) {
  return Lanes(lines, columns).fill([&](Index line, Index column) {
    const auto draw = [&](std::uint64_t half) {
      const auto index = static_cast<std::uint64_t>(line * columns + column);
      return static_cast<std::uint32_t>(
          bits_of(test::to<bfloat16>(limit * test::uniform(seed + half, index))));
    };
    return from_bits(draw(0) | draw(1) << 16);
  });
}

float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }

/// One element of the product, of normal numbers.
using Element = float(Lanes& left, Lanes& right, Index line, Index column, Index depth, float sum);

float element_by_tiles(Lanes& left, Lanes& right, Index line, Index column, Index depth,
                       float sum) {
  for (Index first = 0; first < depth / 2; first += 16) {
    float even = 0, odd = 0;
    for (Index pair = first; pair < first + 16; ++pair) {
      const std::uint32_t a = bits_of(left(line, pair)), b = bits_of(right(pair, column));
      even = multiply_add(widen(a & 0xFFFF), widen(b & 0xFFFF), even);
      odd = multiply_add(widen(a >> 16), widen(b >> 16), odd);
    }
    sum += even + odd;
  }
  return sum;
}

float element_by_dots(Lanes& left, Lanes& right, Index line, Index column, Index depth, float sum) {
  for (Index pair = 0; pair < depth / 2; ++pair) {
    const std::uint32_t a = bits_of(left(line, pair)), b = bits_of(right(pair, column));
    sum = multiply_add(widen(a >> 16), widen(b >> 16), sum);
    sum = multiply_add(widen(a & 0xFFFF), widen(b & 0xFFFF), sum);
  }
  return sum;
}

void expect_products(const detail::MatrixUnit& unit, Element& element) {
  for (const Index lines : {16, 32, 48, 80}) {
    for (const Index columns : {32, 64}) {
      for (const Index depth : {0, 32, 96}) {
        Lanes left = pairs(lines, depth / 2, 1, 3), right = pairs(depth / 2, columns, 3, 2);
        const auto start = [](Index line, Index column) {
          return static_cast<float>(test::uniform(5, static_cast<std::uint64_t>(line + column)));
        };
        for (const bool is_first : {true, false}) {
          Lanes out(lines, columns);
          out.fill(start);
          unit.multiply(left.data.data(), left.stride, right.data.data(), right.stride, lines,
                        columns, depth, is_first, out.data.data(), out.stride);
          for (Index line = 0; line < lines; ++line) {
            for (Index column = 0; column < columns; ++column) {
              const float begin = is_first ? 0.0f : start(line, column);
              ASSERT_EQ(out(line, column), element(left, right, line, column, depth, begin))
                  << lines << " x " << columns << " x " << depth << " at " << line << ", "
                  << column;
            }
            for (Index i = columns; i < out.stride; ++i) ASSERT_EQ(out(line, i), 3.0f);
          }
        }
      }
    }
  }
}

TEST(MatrixUnit, MultipliesBlockByBlock) {
  expect_products(test::plain_tiles(), element_by_tiles);
  expect_products(test::plain_dots(), element_by_dots);
}

/// What the unit makes of one pair of elements.
float product_of(const detail::MatrixUnit& unit, float a, float b, float sum) {
  const auto pair_of = [](float x) {
    return from_bits(bits_of(bfloat16(x)) * 0x10001u);  // even and odd alike
  };
  Lanes left(16, 16), right(16, 32), out(16, 32);
  left.fill([&](Index, Index k) { return k == 0 ? pair_of(a) : 0.0f; });
  right.fill([&](Index k, Index) { return k == 0 ? pair_of(b) : 0.0f; });
  out.fill([&](Index, Index) { return sum; });
  unit.configure();
  unit.multiply(left.data.data(), left.stride, right.data.data(), right.stride, 16, 32, 32, false,
                out.data.data(), out.stride);
  unit.release();
  return out(7, 9);
}

TEST(MatrixUnit, CountsSubnormalNumbersAsZero) {
  const float smallest = std::numeric_limits<float>::min();
  for (const detail::MatrixUnit* const unit : test::matrix_units()) {
    SCOPED_TRACE(unit->name);
    EXPECT_EQ(product_of(*unit, smallest / 2, 0x1p100f, 1), 1);  // operands
    EXPECT_EQ(product_of(*unit, 0x1p100f, smallest / 2, 1), 1);
    EXPECT_EQ(product_of(*unit, smallest, 0.5f, 0), 0);   // products
    EXPECT_EQ(product_of(*unit, 0, 0, smallest / 2), 0);  // sums
    EXPECT_EQ(product_of(*unit, smallest, 1, 0), 2 * smallest);
    EXPECT_TRUE(std::isnan(product_of(*unit, 0, test::infinity<float>(), 1)));
  }
  // Tiles add products to a sum of their own first, dot products do not.
  EXPECT_EQ(product_of(test::plain_tiles(), smallest, 0.5f, smallest), smallest);
  EXPECT_EQ(product_of(test::plain_dots(), smallest, 0.5f, smallest), 2 * smallest);
}

void expect_same_bits(const detail::MatrixUnit& unit, const detail::MatrixUnit& model) {
  for (const double limit : {1.0, 0x1p-62, 0x1p63}) {  // products at either end of the range too
    for (const Index lines : {16, 48, 64}) {
      const Index columns = 64, depth = 160;
      Lanes left = pairs(lines, depth / 2, 11, limit), right = pairs(depth / 2, columns, 13, limit);
      Lanes expected(lines, columns), actual(lines, columns);
      for (const bool is_first : {true, false}) {
        const auto run = [&](const detail::MatrixUnit& by, Lanes& out) {
          by.configure();
          by.multiply(left.data.data(), left.stride, right.data.data(), right.stride, lines,
                      columns, depth, is_first, out.data.data(), out.stride);
          by.release();
        };
        run(model, expected);
        run(unit, actual);
        for (std::size_t i = 0; i < expected.data.size(); ++i) {
          ASSERT_TRUE(same_bits(actual.data[i], expected.data[i])) << limit << " at " << i;
        }
      }
    }
  }
  const float smallest = std::numeric_limits<float>::min();
  for (const float a : {0.0f, smallest / 2, smallest, 1.0f, 0x1p100f, test::infinity<float>()}) {
    for (const float b : {0.0f, smallest / 2, 0.5f, -0x1p100f, test::quiet_nan<float>()}) {
      for (const float sum : {0.0f, -0.0f, smallest / 2, 1.0f}) {
        const float x = product_of(unit, a, b, sum);
        const float y = product_of(model, a, b, sum);
        EXPECT_TRUE(same_bits(x, y) || (std::isnan(x) && std::isnan(y)))
            << a << " " << b << " " << sum;
      }
    }
  }
}

TEST(MatrixUnit, AmxHasTheBitsOfItsModel) {
  const detail::MatrixUnit* const unit = detail::amx_unit();
  if (unit == nullptr) GTEST_SKIP() << "this CPU has no AMX, or the system refuses it";
  expect_same_bits(*unit, test::plain_tiles());
}

TEST(MatrixUnit, DotProductsHaveTheBitsOfTheirModel) {
  const detail::MatrixUnit* const unit = detail::bf16_dots_unit();
  if (unit == nullptr) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  expect_same_bits(*unit, test::plain_dots());
}

TEST(MatrixUnit, IsNotOfferedToLowerInstructionSets) {
  for (const InstructionSet set : {InstructionSet::generic, InstructionSet::sse2,
                                   InstructionSet::avx2, InstructionSet::neon}) {
    EXPECT_EQ(detail::find_matrix_unit(set), nullptr);
  }
}

}  // namespace
}  // namespace attn

#include "attn/options.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <vector>

namespace attn {
namespace {

TEST(PerBatch, AnIntegerServesAllBatches) {
  const PerBatch five = 5, minus = std::int64_t{-7}, big = std::size_t{3};
  EXPECT_TRUE(five.is_scalar());
  EXPECT_EQ(five.size(), 1);
  EXPECT_EQ(five[0], 5);
  EXPECT_EQ(five[99], 5);
  EXPECT_EQ(minus[0], -7);
  EXPECT_EQ(big[1], 3);
}

TEST(PerBatch, ReadsArraysOf32And64Bits) {
  const std::int32_t narrow[] = {1, -2, 3};
  const std::array<std::int64_t, 2> wide = {std::int64_t{1} << 40, -1};
  std::vector<Index> vector = {4, 5};
  const PerBatch a(narrow), b(wide), c(vector), d = Span<const std::int32_t>(narrow);
  EXPECT_FALSE(a.is_scalar());
  EXPECT_EQ(a.size(), 3);
  EXPECT_EQ(a[1], -2);
  EXPECT_EQ(a[2], 3);
  EXPECT_EQ(b.size(), 2);
  EXPECT_EQ(b[0], std::int64_t{1} << 40);
  EXPECT_EQ(b[1], -1);
  EXPECT_EQ(c[1], 5);
  EXPECT_EQ(d[0], 1);
  vector[1] = 6;
  EXPECT_EQ(c[1], 6) << "a PerBatch looks at the caller's numbers, it does not copy them";
}

TEST(PerBatch, TakesNoFloatingPointAndNoTemporary) {
  static_assert(std::is_convertible_v<int, PerBatch>);
  static_assert(std::is_convertible_v<unsigned char, PerBatch>);
  static_assert(!std::is_convertible_v<double, PerBatch>);
  static_assert(!std::is_convertible_v<float, PerBatch>);
  static_assert(!std::is_convertible_v<bool, PerBatch>);
  static_assert(std::is_convertible_v<std::vector<int>&, PerBatch>);
  static_assert(std::is_convertible_v<const std::vector<Index>&, PerBatch>);
  static_assert(!std::is_convertible_v<std::vector<int>, PerBatch>);
  static_assert(!std::is_convertible_v<std::array<int, 2>, PerBatch>);
  static_assert(!std::is_convertible_v<std::vector<short>&, PerBatch>);
  static_assert(!std::is_convertible_v<std::vector<unsigned>&, PerBatch>);
  static_assert(!std::is_convertible_v<std::vector<double>&, PerBatch>);
}

TEST(AccumulationType, IsDoubleIfAnyTypeIs) {
  using Eigen::bfloat16;
  using Eigen::half;
  static_assert(std::is_same_v<AccumulationType<float>, float>);
  static_assert(std::is_same_v<AccumulationType<half, bfloat16, half, half>, float>);
  static_assert(std::is_same_v<AccumulationType<float, half, bfloat16, double>, double>);
  static_assert(std::is_same_v<AccumulationType<const double, float, float, float>, double>);
}

TEST(Want, Combines) {
  const Want both = Want::weights | Want::log_sum_exp;
  EXPECT_TRUE(both & Want::weights);
  EXPECT_TRUE(both & Want::log_sum_exp);
  EXPECT_FALSE(Want::output & Want::weights);
  EXPECT_FALSE(Want::weights & Want::log_sum_exp);
}

TEST(AttentionOptions, DefaultsAreThePlainFormula) {
  const AttentionOptions options;
  EXPECT_FALSE(options.scale.has_value());
  EXPECT_EQ(options.softcap, 0);
  EXPECT_EQ(options.dropout.probability, 0);
  EXPECT_TRUE(options.sinks.empty());
  EXPECT_FALSE(options.query_offset.has_value());
  EXPECT_EQ(options.executor, nullptr);
  EXPECT_EQ(options.workspace.data, nullptr);
  EXPECT_EQ(options.instruction_set, InstructionSet::best);
  EXPECT_FALSE(options.allow_bf16_weights);
}

TEST(InstructionSets, EveryLowerTableIsAvailable) {
  const InstructionSet best = active_instruction_set();
  EXPECT_NE(best, InstructionSet::best) << "it names a table";
  EXPECT_TRUE(detail::is_available(best, best));
  EXPECT_TRUE(detail::is_available(InstructionSet::best, best));
  EXPECT_TRUE(detail::is_available(InstructionSet::generic, best));
#if ATTN_X86_TABLES
  EXPECT_FALSE(detail::is_available(InstructionSet::neon, best));
  EXPECT_FALSE(detail::is_available(InstructionSet::avx512, InstructionSet::avx2));
  EXPECT_FALSE(detail::is_available(InstructionSet::avx2, InstructionSet::sse2));
  EXPECT_TRUE(detail::is_available(InstructionSet::avx2, InstructionSet::avx512));
#endif
  EXPECT_STREQ(name_of(InstructionSet::avx2), "avx2");
  EXPECT_STREQ(name_of(InstructionSet::generic), "generic");
}

TEST(InstructionSets, AKnownCpuGetsItsOwn) {
  const char* const expected = std::getenv("ATTN_EXPECTED_INSTRUCTION_SET");
  if (expected == nullptr) GTEST_SKIP() << "only emulated CPUs are known (see CMakeLists.txt)";
  EXPECT_STREQ(name_of(active_instruction_set()), expected);
}

}  // namespace
}  // namespace attn

#include "attn/config.hpp"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <vector>

namespace attn {
namespace {

TEST(Config, IndexIsSignedAndAsWideAsAPointer) {
  static_assert(std::is_signed_v<Index>);
  static_assert(sizeof(Index) == sizeof(void*));
  static_assert(ATTN_VERSION_MAJOR >= 0 && ATTN_VERSION_MINOR >= 0 && ATTN_VERSION_PATCH >= 0);
}

TEST(Span, SeesArraysAndVectorsWithoutACopy) {
  double array[3] = {1, 2, 3};
  std::array<double, 2> standard_array = {4, 5};
  const std::array<double, 2> const_array = {6, 7};
  std::vector<double> vector = {8, 9, 10, 11};
  const std::vector<double> const_vector = {12};

  EXPECT_EQ(Span<const double>(array).data(), array);
  EXPECT_EQ(Span<const double>(array).size(), 3);
  EXPECT_EQ(Span<double>(standard_array).data(), standard_array.data());
  EXPECT_EQ(Span<const double>(standard_array).size(), 2);
  EXPECT_EQ(Span<const double>(const_array).data(), const_array.data());
  EXPECT_EQ(Span<double>(vector).data(), vector.data());
  EXPECT_EQ(Span<const double>(vector).size(), 4);
  EXPECT_EQ(Span<const double>(const_vector).data(), const_vector.data());
  EXPECT_EQ(Span<const double>(const_vector).size(), 1);

  Span<double> writable(vector);
  writable[2] = 20;
  EXPECT_EQ(vector[2], 20);
  const Span<const double> readable = writable;
  EXPECT_EQ(readable.data(), vector.data());
  EXPECT_EQ(readable.size(), 4);
  double sum = 0;
  for (const double x : readable) sum += x;
  EXPECT_EQ(sum, 8 + 9 + 20 + 11);
}

TEST(Span, IsEmptyByDefault) {
  const Span<const double> span;
  EXPECT_TRUE(span.empty());
  EXPECT_EQ(span.size(), 0);
  EXPECT_EQ(span.data(), nullptr);
  EXPECT_EQ(span.begin(), span.end());
  const std::vector<double> none;
  EXPECT_TRUE(Span<const double>(none).empty());
}

TEST(Span, TakesNoTemporaryAndKeepsConst) {
  using Doubles = std::vector<double>;
  static_assert(std::is_constructible_v<Span<const double>, Doubles&>);
  static_assert(std::is_constructible_v<Span<const double>, const Doubles&>);
  static_assert(!std::is_constructible_v<Span<const double>, Doubles>);
  static_assert(!std::is_constructible_v<Span<const double>, const Doubles>);
  static_assert(!std::is_constructible_v<Span<double>, Doubles>);
  static_assert(!std::is_constructible_v<Span<double>, const Doubles&>);
  static_assert(!std::is_constructible_v<Span<const double>, std::array<double, 2>>);
  static_assert(!std::is_constructible_v<Span<double>, const std::array<double, 2>&>);
  using Array = double[2];
  static_assert(std::is_constructible_v<Span<const double>, Array&>);
  static_assert(!std::is_constructible_v<Span<const double>, Array>);
  static_assert(!std::is_constructible_v<Span<const double>, std::vector<float>&>);
  static_assert(!std::is_constructible_v<Span<double>, Span<const double>>);
}

}  // namespace
}  // namespace attn

#include "attn/error.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace attn {
namespace {

TEST(Error, BothKindsAreInvalidArguments) {
  static_assert(std::is_base_of_v<std::invalid_argument, ShapeError>);
  static_assert(std::is_base_of_v<std::invalid_argument, OptionError>);
  static_assert(!std::is_base_of_v<ShapeError, OptionError>);
  try {
    detail::raise_shape_error("the shape");
    FAIL() << "nothing was thrown";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "the shape");
  }
  try {
    detail::raise_option_error("the option");
    FAIL() << "nothing was thrown";
  } catch (const OptionError& error) {
    EXPECT_STREQ(error.what(), "the option");
  }
}

TEST(FirstException, RethrowsNothingIfNothingWasThrown) {
  detail::FirstException first;
  int runs = 0;
  first.guard([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(first.raised());
  EXPECT_NO_THROW(first.rethrow());
}

TEST(FirstException, KeepsTheFirstOfMany) {
  detail::FirstException first;
  first.guard([] { throw std::runtime_error("first"); });
  EXPECT_TRUE(first.raised());
  first.guard([] { throw 2; });
  first.guard([] {});
  try {
    first.rethrow();
    FAIL() << "nothing was rethrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

TEST(FirstException, KeepsOneOfThoseOfSeveralThreads) {
  detail::FirstException first;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&first, i] {
      for (int n = 0; n < 100; ++n) first.guard([i] { throw i; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(first.raised());
  try {
    first.rethrow();
    FAIL() << "nothing was rethrown";
  } catch (int thread) {
    EXPECT_GE(thread, 0);
    EXPECT_LT(thread, 4);
  }
}

}  // namespace
}  // namespace attn

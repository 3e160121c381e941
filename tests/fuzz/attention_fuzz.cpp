// libFuzzer's entry: cmake --workflow --preset fuzz builds it with clang and sanitizers and runs it
// for a minute; build/fuzz/tests/attn_attention_fuzz -max_total_time=3600 for an hour.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "fuzz/attention_case.hpp"

// libFuzzer's names. A failed expectation throws, which libFuzzer reports with its input.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  ::testing::InitGoogleTest(argc, *argv);
  GTEST_FLAG_SET(throw_on_failure, true);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attn::test::hold_attention_case(data, size);
  return 0;
}

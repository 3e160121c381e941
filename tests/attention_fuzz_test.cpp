// Random calls of attention, held to attention by the book; seeded, so that a failure repeats. The
// same cases are searched by libFuzzer, guided by coverage, in fuzz/attention_fuzz.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attn/random.hpp"
#include "fuzz/attention_case.hpp"

namespace attn {
namespace {

std::vector<std::uint8_t> random_bytes(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t i = 0; bytes.size() < size; ++i) {
    for (const std::uint32_t word : Philox(i, 0, seed).word) {
      bytes.push_back(static_cast<std::uint8_t>(word));
    }
  }
  return bytes;
}

TEST(RandomCalls, AgreeWithTheReference) {
  for (std::uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const std::vector<std::uint8_t> bytes = random_bytes(seed, 256);
    test::hold_attention_case(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace attn

// The public names of instruction sets.
#include "attn/instruction_set.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace {

using attn::InstructionSet;

TEST(InstructionSetNames, AreThoseOfTheEnumerators) {
  static_assert(attn::name_of(InstructionSet::best)[0] == 'b');
  EXPECT_STREQ(attn::name_of(InstructionSet::best), "best");
  EXPECT_STREQ(attn::name_of(InstructionSet::generic), "generic");
  EXPECT_STREQ(attn::name_of(InstructionSet::sse2), "sse2");
  EXPECT_STREQ(attn::name_of(InstructionSet::avx2), "avx2");
  EXPECT_STREQ(attn::name_of(InstructionSet::avx512), "avx512");
  EXPECT_STREQ(attn::name_of(InstructionSet::neon), "neon");
  EXPECT_STREQ(attn::name_of(static_cast<InstructionSet>(-5)), "unknown");
}

TEST(InstructionSetNames, ArePrinted) {
  std::ostringstream text;
  text << "kernels: " << InstructionSet::avx2 << ", " << attn::active_instruction_set();
  EXPECT_EQ(text.str(),
            std::string("kernels: avx2, ") + attn::name_of(attn::active_instruction_set()));
  std::wostringstream wide;
  wide << InstructionSet::neon;
  EXPECT_EQ(wide.str(), L"neon");
}

}  // namespace

// tests/attention_test/distinct.hpp - the sizes of an ordinary call.
#pragma once

#include "support/oracle.hpp"

namespace attn {

// Distinct sizes, so that swapped axes cannot cancel.
inline constexpr test::Sizes kDistinct{2, 6, 3, 2, 7, 9, 5, 4};

}  // namespace attn

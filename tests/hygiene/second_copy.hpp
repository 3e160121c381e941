// tests/hygiene/second_copy.hpp - what the library of attn_second_copy offers to its program.
#pragma once

#include "attn/instruction_set.hpp"

extern "C" {
using AttendFunction = attn::InstructionSet(const float* q, const float* k, const float* v,
                                            float* out);
}
constexpr attn::Index kHeads = 2, kQueries = 50, kKeys = 203, kDim = 37;

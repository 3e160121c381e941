// tests/multi_head_test/layer_of.hpp - the typed tests of the layers.
#pragma once

#include <gtest/gtest.h>

#include "support/element_types.hpp"

namespace attn {

template <class T>
class LayerOf : public ::testing::Test {};
TYPED_TEST_SUITE(LayerOf, test::ElementTypes, test::TypeNames);

}  // namespace attn

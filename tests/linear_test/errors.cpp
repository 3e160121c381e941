// What linear refuses: the text of each error, and an output that was not touched.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/layers/linear.hpp"
#include "support/error_cases.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::message_of;
using test::TestTensor;

/// A call that is right until a test spoils it.
struct LinearCall {
  static constexpr const char* kFunction = "linear: ";
  static constexpr int kShapes = 4;

  Shape4 x{2, 1, 4, 3}, weight{1, 1, 5, 3}, y{2, 1, 4, 5};
  LinearOptions options;

  std::string shapes(int count = kShapes) const {
    return test::list_of({{"x", x}, {"weight", weight}, {"bias", {1, 1, 1, 5}}, {"out", y}}, count);
  }

  template <class Error>
  std::string error() const {
    TestTensor<float> x_(x), weight_(weight), y_(y);
    const float bias[5] = {};
    const std::string text = message_of<Error>([&] {
      linear(x_.view(), LinearWeights<float>{weight_.view(), bias}, y_.view(), options);
    });
    EXPECT_TRUE(y_.is_untouched());
    return text;
  }
};

TEST(LinearErrors, OfShapes) {
  const std::string weight = "weight must be [1, 1, out, dim of x]";
  const std::string out = "out must be [batch of x, 1, length of x, length of weight]";
  test::expect_errors<ShapeError, LinearCall>({
      {[](LinearCall& c) { c.x.heads = 2; }, "x must be [batch, 1, length, in]"},
      {[](LinearCall& c) { c.weight.dim = 4; }, weight},
      {[](LinearCall& c) { c.weight.heads = 2; }, weight},
      {[](LinearCall& c) { c.y.batch = 1; }, out},
      {[](LinearCall& c) { c.y.length = 5; }, out},
      {[](LinearCall& c) { c.y.dim = 4; }, out},
  });
}

TEST(LinearErrors, OfMemory) {
  std::vector<float> memory(100);
  const Tensor4<float> x(memory.data(), {1, 1, 4, 3}), w(memory.data() + 12, {1, 1, 5, 3});
  EXPECT_EQ(message_of<ShapeError>([&] {
              linear(x, LinearWeights<float>{w}, Tensor4<float>(memory.data() + 11, {1, 1, 4, 5}));
            }),
            "linear: out overlaps x in memory; got x [1, 1, 4, 3], weight [1, 1, 5, 3], out [1, 1, "
            "4, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              linear(x, LinearWeights<float>{w}, Tensor4<float>(memory.data() + 26, {1, 1, 4, 5}));
            }),
            "linear: out overlaps weight in memory; got x [1, 1, 4, 3], weight [1, 1, 5, 3], out "
            "[1, 1, 4, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              linear(x, LinearWeights<float>{w, memory.data() + 49},
                     Tensor4<float>(memory.data() + 30, {1, 1, 4, 5}));
            }),
            "linear: out overlaps bias in memory; got x [1, 1, 4, 3], weight [1, 1, 5, 3], bias "
            "[1, 1, 1, 5], out [1, 1, 4, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              linear(x, LinearWeights<float>{Tensor4<const float>(nullptr, {1, 1, 5, 3})},
                     Tensor4<float>(memory.data() + 30, {1, 1, 4, 5}));
            }),
            "linear: weight is not empty, but its pointer is null; got x [1, 1, 4, 3], weight [1, "
            "1, 5, 3]");
}

TEST(LinearErrors, OfTheInstructionSet) {
  if (active_instruction_set() == InstructionSet::neon) GTEST_SKIP() << "neon is here";
  LinearCall call;
  call.options.instruction_set = InstructionSet::neon;
  // The shapes are here to the last character.
  EXPECT_EQ(call.error<OptionError>(),
            std::string("linear: options.instruction_set neon is not offered by this CPU; its best "
                        "is ") +
                name_of(active_instruction_set()) +
                "; got x [2, 1, 4, 3], weight [1, 1, 5, 3], bias [1, 1, 1, 5], out [2, 1, 4, 5]");
}

}  // namespace
}  // namespace attn

// What wrong tensors get: the text of each error, word for word, and outputs that were not touched.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attention_errors_test/call.hpp"
#include "attn/attention.hpp"
#include "support/error_cases.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::message_of;
using test::TestTensor;

TEST(ShapeErrors, TheCallIsRightToBeginWith) {
  TestTensor<float> q({2, 6, 4, 5}), k({2, 3, 7, 5}), v({2, 2, 7, 3}), out({2, 6, 4, 3});
  q.fill_value(0);
  k.fill_value(0);
  v.fill_value(1);
  EXPECT_NO_THROW(scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view()));
}

TEST(ShapeErrors, OfMismatchedAxes) {
  const std::string key_heads = "the heads of k must divide the heads of q";
  test::expect_errors<ShapeError, Call>({
      {[](Call& c) { c.k.batch = 3; }, "k must have the batch of q, or 1"},
      {[](Call& c) { c.v.batch = 0; }, "v must have the batch of q, or 1"},
      {[](Call& c) { c.v.length = 6; }, "k and v must have the same length"},
      {[](Call& c) { c.k.dim = 4; }, "q and k must have the same dim"},
      {[](Call& c) { c.k.heads = 4; }, key_heads},
      {[](Call& c) { c.k.heads = 12; }, key_heads},
      {[](Call& c) { c.k.heads = 0; }, key_heads},
      {[](Call& c) { c.v.heads = 5; }, "the heads of v must divide the heads of q"},
  });

  // Once to the last character.
  Call call;
  call.k.batch = 3;
  EXPECT_EQ(call.error<ShapeError>(),
            "scaled_dot_product_attention: k must have the batch of q, or 1; got q [2, 6, 4, 5], k "
            "[3, 3, 7, 5], v [2, 2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, "
            "6, 4, 1]");
}

TEST(ShapeErrors, OfOutputs) {
  const std::string rule = "out must be [batch of q, heads of q, length of q, dim of v]";
  test::expect_errors<ShapeError, Call>({
      {[](Call& c) { c.out.batch = 1; }, rule},
      {[](Call& c) { c.out.heads = 3; }, rule},
      {[](Call& c) { c.out.length = 7; }, rule},
      {[](Call& c) { c.out.dim = 5; }, rule},
      {[](Call& c) {
         c.out = {2, 4, 6, 3};
       },
       rule},
      {[](Call& c) {
         c.out = {0, 0, 0, 0};
       },
       rule},
      {[](Call& c) {
         c.weights = {2, 6, 7, 4};
       },
       "weights must be [batch of q, heads of q, length of q, length of k]"},
      {[](Call& c) { c.log_sum_exp.dim = 2; },
       "log_sum_exp must be [batch of q, heads of q, length of q, 1]"},
  });
  // A pointer with a shape of zeros is given, and wrong.
  float number = 7;
  Tensor4Buffer<float> q({1, 1, 2, 2}), out({1, 1, 2, 2});
  const Tensor4<float> nothing(&number, {0, 0, 0, 0});
  EXPECT_THROW(scaled_dot_product_attention(q, q, q, out, no_mask(), {}, {nothing, {}}),
               ShapeError);
  EXPECT_THROW(scaled_dot_product_attention(q, q, q, out, no_mask(), {}, {{}, nothing}),
               ShapeError);
  EXPECT_EQ(number, 7);
}

TEST(ShapeErrors, OfExtentsAndPointers) {
  float memory[8] = {};
  const Tensor4<float> good(memory, {1, 1, 1, 1}), apart(memory + 1, {1, 1, 1, 1});
  const Tensor4<float> null(nullptr, {1, 1, 1, 1});
  const auto negative = [&](Shape4 shape) { return Tensor4<float>(memory, shape); };
  struct Case {
    Tensor4<float> q, k, v, out;
    const char* rule;
    int named;  // how many shapes the text lists
  };
  const Case cases[] = {
      {negative({-1, 1, 1, 1}), good, good, apart, "q has a negative extent", 1},
      {good, negative({1, -1, 1, 1}), good, apart, "k has a negative extent", 2},
      {good, good, negative({1, 1, -2, 1}), apart, "v has a negative extent", 3},
      {good, good, good, negative({1, 1, 1, -1}), "out has a negative extent", 4},
      {null, good, good, apart, "q is not empty, but its pointer is null", 1},
      {good, good, good, null, "out is not empty, but its pointer is null", 4},
  };
  for (const Case& c : cases) {
    const std::string list = test::list_of(
        {{"q", c.q.shape()}, {"k", c.k.shape()}, {"v", c.v.shape()}, {"out", c.out.shape()}},
        c.named);
    EXPECT_EQ(message_of<ShapeError>([&] { scaled_dot_product_attention(c.q, c.k, c.v, c.out); }),
              std::string(Call::kFunction) + c.rule + "; got " + list);
  }
  EXPECT_THROW(scaled_dot_product_attention(good, good, good, apart, no_mask(), {}, {null, {}}),
               ShapeError);
  EXPECT_EQ(memory[1], 0);
}

TEST(ShapeErrors, OfOutputsThatOverlapThemselves) {
  Tensor4Buffer<float> q({2, 2, 2, 2}), memory({2, 2, 2, 2});
  const Stride4 strides[] = {{0, 4, 2, 1}, {8, 0, 2, 1}, {8, 4, 0, 1}, {8, 4, 2, 0}};
  for (const Stride4& stride : strides) {
    const Tensor4<float> out(memory.data(), {2, 2, 2, 2}, stride);
    EXPECT_EQ(message_of<ShapeError>([&] { scaled_dot_product_attention(q, q, q, out); }),
              "scaled_dot_product_attention: an axis of out longer than 1 has stride 0: its "
              "elements would be written over each other; got q [2, 2, 2, 2], k [2, 2, 2, 2], v "
              "[2, 2, 2, 2], out [2, 2, 2, 2]");
  }
  // Of length 1 it does not matter.
  Tensor4Buffer<float> single({1, 1, 1, 2});
  const Tensor4<float> out(memory.data(), {1, 1, 1, 2}, Stride4{0, 0, 0, 1});
  EXPECT_NO_THROW(scaled_dot_product_attention(single, single, single, out));
}

TEST(ShapeErrors, OfOverlaps) {
  std::vector<float> memory(1000);
  const Shape4 shape{1, 2, 4, 4};  // 32 elements
  const auto at = [&](Index place) { return Tensor4<float>(memory.data() + place, shape); };
  const auto error_of = [&](const auto& q, const auto& k, const auto& v, const auto& out,
                            const AnyMask& mask = {}, AttentionOutputs<float> extra = {}) {
    const std::string text = message_of<ShapeError>(
        [&] { scaled_dot_product_attention(q, k, v, out, mask, {}, extra); });
    for (const float x : memory) EXPECT_EQ(x, 0);
    return text.substr(0, text.find(';'));
  };
  const std::string function = "scaled_dot_product_attention: ";
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(31)), function + "out overlaps q in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(131)), function + "out overlaps k in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(200)), function + "out overlaps v in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), no_mask(), {at(310), {}}),
            function + "weights overlaps out in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), no_mask(), {at(120), {}}),
            function + "weights overlaps k in memory");
  const Tensor4<float> lse(memory.data() + 228, {1, 2, 4, 1});
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), no_mask(), {{}, lse}),
            function + "log_sum_exp overlaps v in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), add_bias(at(290))),
            function + "out overlaps add_bias bias in memory");
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), add_bias(at(400)) & add_bias(at(431)),
                     {at(450), {}}),
            function + "weights overlaps add_bias bias in memory");
  const Tensor4<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(memory.data() + 331),
                                    {1, 1, 1, 4});
  EXPECT_EQ(error_of(at(0), at(100), at(200), at(300), drop_where(bytes)),
            function + "out overlaps drop_where mask in memory");
  const std::string text = message_of<ShapeError>(
      [&] { scaled_dot_product_attention(at(0), at(100), at(200), at(31)); });
  EXPECT_EQ(text, function +
                      "out overlaps q in memory; got q [1, 2, 4, 4], k [1, 2, 4, 4], v [1, 2, "
                      "4, 4], out [1, 2, 4, 4]");

  // Neighbours, inputs among themselves, and slices of one packed row are legal.
  EXPECT_NO_THROW(scaled_dot_product_attention(at(0), at(0), at(0), at(32)));
  const auto part = [&](Index place) {
    return Tensor4<float>(memory.data() + place, shape, Stride4{200, 4, 32, 1});
  };
  EXPECT_NO_THROW(scaled_dot_product_attention(part(0), part(8), part(16), part(24)));
}

TEST(Errors, NameTheirFunction) {
  Tensor4Buffer<float> q({1, 2, 4, 8}), k({1, 2, 4, 7});
  EXPECT_EQ(message_of<ShapeError>([&] { attention_workspace_bytes(q, k, k); }),
            "attention_workspace_bytes: q and k must have the same dim; got q [1, 2, 4, 8], k [1, "
            "2, 4, 7], v [1, 2, 4, 7]");
  EXPECT_EQ(message_of<ShapeError>([&] { scaled_dot_product_attention(q, k, k); }),
            "scaled_dot_product_attention: q and k must have the same dim; got q [1, 2, 4, 8], k "
            "[1, 2, 4, 7], v [1, 2, 4, 7], out [1, 2, 4, 7]");
}

}  // namespace
}  // namespace attn

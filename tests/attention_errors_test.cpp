// What bad input gets: the text of each error, word for word, and outputs that were not touched.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::message_of;
using test::TestTensor;

/// A call that is right until a test spoils it.
struct Call {
  Shape4 q{2, 6, 4, 5}, k{2, 3, 7, 5}, v{2, 2, 7, 3}, out{2, 6, 4, 3};
  Shape4 weights{2, 6, 4, 7}, log_sum_exp{2, 6, 4, 1};
  AnyMask mask;
  AttentionOptions options;

  static constexpr const char* kShapes =
      "q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, 2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], "
      "log_sum_exp [2, 6, 4, 1]";

  /// The text of the Error, without the name of the function; the outputs must be as they were.
  template <class Error>
  std::string error() const {
    TestTensor<float> q_(q), k_(k), v_(v), out_(out), weights_(weights), lse_(log_sum_exp);
    q_.fill_value(0);
    k_.fill_value(0);
    v_.fill_value(1);
    const std::string text = message_of<Error>([&] {
      scaled_dot_product_attention(q_.view(), k_.view(), v_.view(), out_.view(), mask, options,
                                   {weights_.view(), lse_.view()});
    });
    EXPECT_TRUE(out_.is_untouched());
    EXPECT_TRUE(weights_.is_untouched());
    EXPECT_TRUE(lse_.is_untouched());
    const std::string function = "scaled_dot_product_attention: ";
    if (text.rfind(function, 0) != 0) return text;
    return text.substr(function.size());
  }
};

TEST(ShapeErrors, TheCallIsRightToBeginWith) {
  TestTensor<float> q({2, 6, 4, 5}), k({2, 3, 7, 5}), v({2, 2, 7, 3}), out({2, 6, 4, 3});
  q.fill_value(0);
  k.fill_value(0);
  v.fill_value(1);
  EXPECT_NO_THROW(scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view()));
}

TEST(ShapeErrors, OfMismatchedAxes) {
  const auto error_of = [](const auto& spoil) {
    Call call;
    spoil(call);
    return call.error<ShapeError>();
  };
  EXPECT_EQ(error_of([](Call& c) { c.k.batch = 3; }),
            "k must have the batch of q, or 1; got q [2, 6, 4, 5], k [3, 3, 7, 5], v [2, 2, 7, 3], "
            "out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.v.batch = 0; }),
            "v must have the batch of q, or 1; got q [2, 6, 4, 5], k [2, 3, 7, 5], v [0, 2, 7, 3], "
            "out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(
      error_of([](Call& c) { c.v.length = 6; }),
      "k and v must have the same length; got q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, 2, 6, 3], "
      "out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.k.dim = 4; }),
            "q and k must have the same dim; got q [2, 6, 4, 5], k [2, 3, 7, 4], v [2, 2, 7, 3], "
            "out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.k.heads = 4; }),
            "the heads of k must divide the heads of q; got q [2, 6, 4, 5], k [2, 4, 7, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.k.heads = 12; }),
            "the heads of k must divide the heads of q; got q [2, 6, 4, 5], k [2, 12, 7, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.k.heads = 0; }),
            "the heads of k must divide the heads of q; got q [2, 6, 4, 5], k [2, 0, 7, 5], v [2, "
            "2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  EXPECT_EQ(error_of([](Call& c) { c.v.heads = 5; }),
            "the heads of v must divide the heads of q; got q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, "
            "5, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
}

TEST(ShapeErrors, OfOutputs) {
  const std::string rule = "out must be [batch of q, heads of q, length of q, dim of v]; got ";
  for (const Shape4& wrong : {Shape4{1, 6, 4, 3}, Shape4{2, 3, 4, 3}, Shape4{2, 6, 7, 3},
                              Shape4{2, 6, 4, 5}, Shape4{2, 4, 6, 3}, Shape4{0, 0, 0, 0}}) {
    Call call;
    call.out = wrong;
    EXPECT_EQ(call.error<ShapeError>(), rule + "q [2, 6, 4, 5], k [2, 3, 7, 5], v [2, 2, 7, 3], " +
                                            detail::describe("out", wrong) +
                                            ", weights [2, 6, 4, 7], log_sum_exp [2, 6, 4, 1]");
  }
  Call call;
  call.weights = {2, 6, 7, 4};
  EXPECT_EQ(call.error<ShapeError>(),
            "weights must be [batch of q, heads of q, length of q, length of k]; got q [2, 6, 4, "
            "5], k [2, 3, 7, 5], v [2, 2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 7, 4], "
            "log_sum_exp [2, 6, 4, 1]");
  call.weights = {2, 6, 4, 7};
  call.log_sum_exp = {2, 6, 4, 2};
  EXPECT_EQ(call.error<ShapeError>(),
            "log_sum_exp must be [batch of q, heads of q, length of q, 1]; got q [2, 6, 4, 5], k "
            "[2, 3, 7, 5], v [2, 2, 7, 3], out [2, 6, 4, 3], weights [2, 6, 4, 7], log_sum_exp [2, "
            "6, 4, 2]");
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
  const Tensor4<float> good(memory, {1, 1, 1, 1}), out(memory + 1, {1, 1, 1, 1});
  const auto error_of = [](const auto& q, const auto& k, const auto& v, const auto& o) {
    return message_of<ShapeError>([&] { scaled_dot_product_attention(q, k, v, o); });
  };
  const auto negative = [&](Shape4 shape) { return Tensor4<float>(memory, shape); };
  EXPECT_EQ(error_of(negative({-1, 1, 1, 1}), good, good, out),
            "scaled_dot_product_attention: q has a negative extent; got q [-1, 1, 1, 1]");
  EXPECT_EQ(error_of(good, negative({1, -1, 1, 1}), good, out),
            "scaled_dot_product_attention: k has a negative extent; got q [1, 1, 1, 1], k [1, -1, "
            "1, 1]");
  EXPECT_EQ(error_of(good, good, negative({1, 1, -2, 1}), out),
            "scaled_dot_product_attention: v has a negative extent; got q [1, 1, 1, 1], k [1, 1, "
            "1, 1], v [1, 1, -2, 1]");
  EXPECT_EQ(error_of(good, good, good, negative({1, 1, 1, -1})),
            "scaled_dot_product_attention: out has a negative extent; got q [1, 1, 1, 1], k [1, 1, "
            "1, 1], v [1, 1, 1, 1], out [1, 1, 1, -1]");
  const Tensor4<float> null(nullptr, {1, 1, 1, 1});
  EXPECT_EQ(
      error_of(null, good, good, out),
      "scaled_dot_product_attention: q is not empty, but its pointer is null; got q [1, 1, 1, "
      "1]");
  EXPECT_EQ(error_of(good, good, good, null),
            "scaled_dot_product_attention: out is not empty, but its pointer is null; got q [1, 1, "
            "1, 1], k [1, 1, 1, 1], v [1, 1, 1, 1], out [1, 1, 1, 1]");
  EXPECT_THROW(scaled_dot_product_attention(good, good, good, out, no_mask(), {}, {null, {}}),
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

TEST(OptionErrors, OfNumbersOutOfRange) {
  const auto error_of = [](const auto& spoil) {
    Call call;
    spoil(call.options);
    return call.error<OptionError>();
  };
  const std::string got = std::string("; got ") + Call::kShapes;
  const double inf = test::infinity<double>(), nan = test::quiet_nan<double>();
  EXPECT_EQ(error_of([&](AttentionOptions& o) { o.scale = nan; }),
            "options.scale must be finite in the accumulation type, got nan" + got);
  EXPECT_EQ(error_of([&](AttentionOptions& o) { o.scale = -inf; }),
            "options.scale must be finite in the accumulation type, got -inf" + got);
  EXPECT_EQ(error_of([&](AttentionOptions& o) { o.scale = 1e39; }),
            "options.scale must be finite in the accumulation type, got 1e+39" + got);
  EXPECT_EQ(
      error_of([&](AttentionOptions& o) { o.softcap = -1; }),
      "options.softcap must be finite in the accumulation type and 0 (none) or more, got -1" + got);
  EXPECT_EQ(
      error_of([&](AttentionOptions& o) { o.softcap = inf; }),
      "options.softcap must be finite in the accumulation type and 0 (none) or more, got inf" +
          got);
  EXPECT_EQ(
      error_of([&](AttentionOptions& o) { o.softcap = nan; }),
      "options.softcap must be finite in the accumulation type and 0 (none) or more, got nan" +
          got);
  const std::pair<double, std::string> wrong[] = {{-0.1, "-0.1"}, {1.1, "1.1"}, {inf, "inf"}};
  for (const auto& [p, text] : wrong) {
    EXPECT_EQ(error_of([&, p = p](AttentionOptions& o) { o.dropout.probability = p; }),
              "options.dropout.probability must lie within 0 and 1, got " + text + got);
  }
  EXPECT_EQ(error_of([&](AttentionOptions& o) { o.dropout.probability = nan; }),
            "options.dropout.probability must lie within 0 and 1, got nan" + got);
  EXPECT_EQ(error_of([&](AttentionOptions& o) { o.instruction_set = InstructionSet::neon; }),
            std::string("options.instruction_set neon is not offered by this CPU; its best is ") +
                detail::name_of(active_instruction_set()) + got);
}

TEST(OptionErrors, OfSinks) {
  const std::vector<double> five(5), six_inf(6, test::infinity<double>()),
      six_nan(6, test::quiet_nan<double>()), six_wide(6, 1e39);
  const std::string got = std::string("; got ") + Call::kShapes;
  Call call;
  call.options.sinks = five;
  EXPECT_EQ(call.error<ShapeError>(),
            "options.sinks must hold one number a query head, 6, got 5" + got);
  call.options.sinks = six_inf;
  EXPECT_EQ(call.error<OptionError>(),
            "options.sinks must be finite in the accumulation type, got inf" + got);
  call.options.sinks = six_nan;
  EXPECT_EQ(call.error<OptionError>(),
            "options.sinks must be finite in the accumulation type, got nan" + got);
  call.options.sinks = six_wide;
  EXPECT_EQ(call.error<OptionError>(),
            "options.sinks must be finite in the accumulation type, got 1e+39" + got);
  // In a double call it is finite.
  Tensor4Buffer<double> q({1, 6, 2, 2}), k({1, 1, 2, 2}), out({1, 6, 2, 2});
  EXPECT_NO_THROW(scaled_dot_product_attention(q, k, k, out, no_mask(), call.options));
  EXPECT_NO_THROW(attention_workspace_bytes(q, k, k, no_mask(), call.options));
}

TEST(OptionErrors, OfTheAccumulationType) {
  // Finite as a double but not as a float: neither may turn into infinity without a word.
  AttentionOptions wide_scale, wide_softcap;
  wide_scale.scale = -1e39;
  wide_softcap.softcap = 1e39;
  Call call;
  call.options = wide_scale;
  EXPECT_EQ(call.error<OptionError>().rfind(
                "options.scale must be finite in the accumulation type, got -1e+39;", 0),
            0u);
  call.options = wide_softcap;
  EXPECT_EQ(call.error<OptionError>().rfind(
                "options.softcap must be finite in the accumulation type and 0 (none) or more", 0),
            0u);
  Tensor4Buffer<double> q({1, 6, 2, 2}), out({1, 6, 2, 2});
  for (const AttentionOptions& options : {wide_scale, wide_softcap}) {
    EXPECT_NO_THROW(scaled_dot_product_attention(q, q, q, out, no_mask(), options));
    EXPECT_NO_THROW(attention_workspace_bytes(q, q, q, no_mask(), options));
  }
}

TEST(OptionErrors, OfPositions) {
  const std::string got = std::string("; got ") + Call::kShapes;
  Call call;
  const std::vector<Index> three = {1, 2, 3};
  call.options.query_offset = three;
  EXPECT_EQ(call.error<ShapeError>(),
            "options.query_offset must hold one number, or one each batch of q, 2, got 3" + got);
  call.options.query_offset = 1;
  call.mask = causal_top_left();
  EXPECT_EQ(
      call.error<OptionError>(),
      "causal_top_left() and options.query_offset give different positions to the queries" + got);
  call.options.query_offset.reset();
  call.mask = causal();
  EXPECT_EQ(call.error<ShapeError>(),
            "causal() needs as many queries as keys, or a position: use causal_top_left() (offset "
            "0), causal_bottom_right() (offset Sk - Sq), causal_from(offset) or "
            "options.query_offset" +
                got);
  call.mask = causal_bottom_right() & key_lengths(3);
  EXPECT_EQ(call.error<ShapeError>(),
            "causal_bottom_right() with key_lengths and a query length that is not the key length: "
            "say where the queries stand, as causal_from(offset) or options.query_offset (length - "
            "Sq: at the end of the valid keys)" +
                got);
  call.mask = key_lengths(8);
  EXPECT_EQ(call.error<OptionError>(),
            "key_lengths must lie within 0 and the number of keys 7, got 8 for batch 0" + got);
}

TEST(OptionErrors, OfMaskShapes) {
  Call call;
  bool flag[1] = {true};
  call.mask = keep_where(Tensor4<bool>(flag, {1, 1, 7, 4}));
  EXPECT_EQ(call.error<ShapeError>(),
            "the keep_where mask must have the shape of the scores, or 1, on every axis: scores "
            "[2, 6, 4, 7]; got " +
                std::string(Call::kShapes) + ", keep_where mask [1, 1, 7, 4]");
}

TEST(OptionErrors, OfTheWorkspace) {
  Tensor4Buffer<float> q({1, 2, 40, 8}), out({1, 2, 40, 8});
  std::fill_n(out.data(), out.size(), 7.0f);
  const std::size_t bytes = attention_workspace_bytes(q, q, q);
  std::vector<char> memory(bytes);
  AttentionOptions options;
  options.workspace = {memory.data(), 100};
  const std::string text = message_of<OptionError>(
      [&] { scaled_dot_product_attention(q, q, q, out, no_mask(), options); });
  EXPECT_EQ(text.rfind("scaled_dot_product_attention: options.workspace is too small: "
                       "attention_workspace_bytes asks for ",
                       0),
            0u)
      << text;
  EXPECT_NE(text.find(" bytes, got 100; got q [1, 2, 40, 8]"), std::string::npos) << text;
  for (Index i = 0; i < out.size(); ++i) EXPECT_EQ(out.data()[i], 7);
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

// ---- What the user's functions throw.

struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Lambdas, WhatTheyThrowReachesTheCaller) {
  Tensor4Buffer<float> q({3, 4, 40, 8}), out({3, 4, 40, 8});
  const auto bomb_in_mask = keep_if([](ScorePosition at) -> bool {
    if (at.batch == 1 && at.head == 2 && at.query == 30) throw OwnError("from keep_if");
    return true;
  });
  const auto bomb_in_score = modify_score([](float score, ScorePosition at) {
    if (at.key == 17) throw OwnError("from modify_score");
    return score;
  });
  ThreadPool pool(4);
  for (Executor* const executor :
       {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    AttentionOptions options;
    options.executor = executor;
    for (int repeat = 0; repeat < 10; ++repeat) {
      EXPECT_EQ(message_of<OwnError>(
                    [&] { scaled_dot_product_attention(q, q, q, out, bomb_in_mask, options); }),
                "from keep_if");
      EXPECT_EQ(message_of<OwnError>(
                    [&] { scaled_dot_product_attention(q, q, q, out, bomb_in_score, options); }),
                "from modify_score");
    }
    // The next call is as good as ever.
    EXPECT_NO_THROW(scaled_dot_product_attention(q, q, q, out, no_mask(), options));
    EXPECT_EQ(out(2, 3, 39, 7), 0);
  }
}

TEST(Lambdas, AreCalledForScoresOnlyAndOncePerScore) {
  for (const Shape4& shape : {Shape4{2, 4, 3, 21}, Shape4{1, 2, 37, 131}}) {
    const Index queries = shape.length, keys = shape.dim;
    Tensor4Buffer<float> q({shape.batch, shape.heads, queries, 2}), k({shape.batch, 1, keys, 2}),
        out({shape.batch, shape.heads, queries, 2});
    Tensor4Buffer<int> calls(shape);
    int outside = 0;
    const auto count = modify_score([&](float score, ScorePosition at) {
      const bool inside = at.batch >= 0 && at.batch < shape.batch && at.head >= 0 &&
                          at.head < shape.heads && at.query >= 0 && at.query < queries &&
                          at.key >= 0 && at.key < keys && at.query_position == at.query + 5;
      if (inside) {
        ++calls(at.batch, at.head, at.query, at.key);
      } else {
        ++outside;
      }
      return score;
    });
    AttentionOptions options;
    options.query_offset = 5;
    scaled_dot_product_attention(q, k, k, out, count, options);
    EXPECT_EQ(outside, 0);
    for (const int c : Span<const int>(calls.data(), calls.size())) EXPECT_EQ(c, 1);
  }
}

}  // namespace
}  // namespace attn

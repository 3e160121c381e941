// What the user's functions throw, and how often they are called.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "attn/attention.hpp"
#include "attn/thread_pool.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::message_of;

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

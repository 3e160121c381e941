// tests/attention_errors_test/call.hpp - a call that is right until a test spoils it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "attn/attention.hpp"
#include "support/error_cases.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {

struct Call {
  static constexpr const char* kFunction = "scaled_dot_product_attention: ";
  static constexpr int kShapes = 6;

  Shape4 q{2, 6, 4, 5}, k{2, 3, 7, 5}, v{2, 2, 7, 3}, out{2, 6, 4, 3};
  Shape4 weights{2, 6, 4, 7}, log_sum_exp{2, 6, 4, 1};
  AnyMask mask;
  AttentionOptions options;

  std::string shapes(int count = kShapes) const {
    return test::list_of({{"q", q},
                          {"k", k},
                          {"v", v},
                          {"out", out},
                          {"weights", weights},
                          {"log_sum_exp", log_sum_exp}},
                         count);
  }

  /// The text of the Error; the outputs must be as they were.
  template <class Error>
  std::string error() const {
    test::TestTensor<float> q_(q), k_(k), v_(v), out_(out), weights_(weights), lse_(log_sum_exp);
    q_.fill_value(0);
    k_.fill_value(0);
    v_.fill_value(1);
    const std::string text = test::message_of<Error>([&] {
      scaled_dot_product_attention(q_.view(), k_.view(), v_.view(), out_.view(), mask, options,
                                   {weights_.view(), lse_.view()});
    });
    EXPECT_TRUE(out_.is_untouched());
    EXPECT_TRUE(weights_.is_untouched());
    EXPECT_TRUE(lse_.is_untouched());
    return text;
  }
};

}  // namespace attn

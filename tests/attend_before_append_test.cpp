// Attending over a cache before the tokens of the queries have been appended to it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/ragged.hpp"

namespace attn {
namespace {

class AttendBeforeAppend : public ::testing::Test {
 protected:
  KeyValueCache<float> cache{2, 1, 8, 4};
  Tensor4Buffer<float> q{Shape4{2, 1, 3, 4}}, out{Shape4{2, 1, 3, 4}};

  void append(Index sequence, Index tokens) {
    const Tensor4Buffer<float> x(Shape4{1, 1, tokens, 4});
    cache.append_to(sequence, x, x);
  }
  template <class M>
  std::string message_of(const M& mask, const AttentionOptions& options = {}) {
    try {
      scaled_dot_product_attention(q, cache, out, mask, options);
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "";
  }
};

constexpr char kMessage[] =
    "scaled_dot_product_attention: causal() over a cache of which no sequence holds as many tokens "
    "as q has: append the keys and values of these tokens first, or say where the queries stand, "
    "as causal_from(offset) or options.query_offset; got q [2, 1, 3, 4], k [2, 1, ";

TEST_F(AttendBeforeAppend, IsRefusedUnderCausal) {
  EXPECT_EQ(message_of(causal()).rfind(kMessage, 0), 0u) << message_of(causal());
  append(0, 2);
  EXPECT_EQ(message_of(causal()).rfind(kMessage, 0), 0u) << message_of(causal());
  EXPECT_EQ(message_of(causal() & sliding_window(1, 0)).rfind(kMessage, 0), 0u);
  EXPECT_EQ(message_of(AnyMask(causal())).rfind(kMessage, 0), 0u);
}

TEST_F(AttendBeforeAppend, IsAllowedWhereOneSequenceHoldsAsMany) {
  append(1, 3);
  EXPECT_EQ(message_of(causal()), "");
}

TEST_F(AttendBeforeAppend, IsAllowedWhereTheOffsetIsSetOrDoesNotMatter) {
  append(0, 2);
  EXPECT_EQ(message_of(no_mask()), "");
  EXPECT_EQ(message_of(causal_top_left()), "");
  EXPECT_EQ(message_of(causal_bottom_right()), "");
  EXPECT_EQ(message_of(causal_from(-1)), "");
  AttentionOptions options;
  options.query_offset = 0;
  EXPECT_EQ(message_of(causal(), options), "");
  q = Tensor4Buffer<float>(Shape4{2, 1, 0, 4});
  out = q;
  EXPECT_EQ(message_of(causal()), "");
}

TEST_F(AttendBeforeAppend, WorkspacesMayBeSizedBeforeTheFirstToken) {
  const std::size_t empty = attention_workspace_bytes(q, cache, causal());
  append(0, 5);
  append(1, 8);
  EXPECT_EQ(attention_workspace_bytes(q, cache, causal()), empty);
}

TEST_F(AttendBeforeAppend, ASequenceOfARaggedBatchMayHoldFewer) {
  append(0, 3);
  append(1, 1);
  const Tensor4Buffer<float> packed_q(Shape4{1, 1, 6, 4});
  Tensor4Buffer<float> packed_out(packed_q.shape());
  const Index starts[] = {0, 3, 6};
  EXPECT_NO_THROW(ragged_attention(packed_q, cache, packed_out, starts, causal()));
}

}  // namespace
}  // namespace attn

// An executor is asked once a call how many tasks it takes at a time: scratch is sized by the
// answer.
#include <gtest/gtest.h>

#include "attn/executor.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layers/attention_block.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace test {
namespace {

/// Offers one worker more each time it is asked, and lets the last of them do all the work.
class GrowingExecutor : public Executor {
 public:
  int concurrency() const override {
    ++offered_;
    if (first_offer_ == 0) first_offer_ = offered_;
    ++questions_;
    return offered_;
  }
  void parallel_for(Index count, void (*task)(void* context, Index index), void* context) override {
    EXPECT_LE(count, first_offer_);
    for (Index i = count; i-- > 0;) task(context, i);
  }

  /// Runs a call that has work for many.
  template <class Call>
  void expect_one_question(const char* name, const Call& call) {
    SCOPED_TRACE(name);
    first_offer_ = questions_ = 0;
    call();
    EXPECT_EQ(questions_, 1);
  }

 private:
  mutable int offered_ = 1, first_offer_ = 0, questions_ = 0;
};

TEST(Executors, AreAskedOnceACall) {
  const AttentionConfig config = config_of(32, 4, 2);
  const LayerMemory<float> memory(config);
  auto layer = memory.layer();
  layer.set_query_key_norm({}, {});
  const AttentionBlock<float> block(layer);
  const RotaryEmbedding rotary(8, RotaryPairing::half_split);
  TestTensor<float> x({3, 1, 200, 32}), out({3, 1, 200, 32}), y({3, 1, 200, 32});
  x.fill_uniform(1);
  KeyValueCache<float> cache(3, 2, 1000, 8);
  GrowingExecutor executor;
  AttentionOptions options;
  options.executor = &executor;
  LinearOptions linear_options;
  linear_options.executor = &executor;
  layer.forward(x.view(), y.view(), causal(), {}, {}, &rotary);

  executor.expect_one_question(
      "linear", [&] { linear(x.view(), memory.query_weights(), out.view(), linear_options); });
  executor.expect_one_question("layer_norm", [&] {
    layer_norm(x.view(), LayerNormWeights<float>{}, out.view(), &executor);
  });
  executor.expect_one_question(
      "rms_norm", [&] { rms_norm(x.view(), RmsNormWeights<float>{}, out.view(), &executor); });
  executor.expect_one_question("rotary", [&] {
    rotary.apply(bshd(out.view().data(), Shape4{3, 4, 200, 8}), 0, &executor);
  });
  executor.expect_one_question(
      "forward", [&] { layer.forward(x.view(), out.view(), causal(), options, {}, &rotary); });
  EXPECT_TRUE(same_bits(out.view(), y.view()));
  executor.expect_one_question("cross forward", [&] {
    layer.forward(x.view(), x.view(), x.view(), out.view(), no_mask(), options);
  });
  executor.expect_one_question("append",
                               [&] { layer.append(x.view(), x.view(), cache, options, &rotary); });
  executor.expect_one_question(
      "attend", [&] { layer.attend(x.view(), cache, out.view(), causal(), options, &rotary); });
  EXPECT_TRUE(same_bits(out.view(), y.view()));
  executor.expect_one_question(
      "step", [&] { layer.step(x.view(), cache, out.view(), causal(), options, &rotary); });
  executor.expect_one_question("workspace_bytes", [&] {
    EXPECT_GT(layer.workspace_bytes(x.view(), causal(), options), 0u);
  });
  executor.expect_one_question("step_workspace_bytes", [&] {
    EXPECT_GT(layer.step_workspace_bytes(x.view(), cache, causal(), options), 0u);
  });
  executor.expect_one_question("block", [&] {
    block.forward(x.view(), out.view(), causal(), options, {}, BlockMode::training);
  });
}

}  // namespace
}  // namespace test
}  // namespace attn

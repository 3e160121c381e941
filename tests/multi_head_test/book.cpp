// The attention layers held to the book, to the functions they are made of, and to each other.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attn/layers/multi_head.hpp"
#include "multi_head_test/layer_of.hpp"
#include "support/layers.hpp"
#include "support/results.hpp"

namespace attn {
namespace {

using test::BookAnswers;
using test::config_of;
using test::distinct_config;
using test::expect_same;
using test::Formula;
using test::forward;
using test::LayerMemory;
using test::LayerTensors;
using test::Layout;
using test::Results;
using test::same_bits;
using test::TestTensor;

/// With every instruction set, against the book.
template <class T, class M>
void check(const LayerMemory<T>& memory, const LayerTensors<T>& in, const M& mask,
           const Formula& formula, const AttentionOptions& given = {},
           Layout layout = Layout::contiguous) {
  const auto layer = memory.layer();
  const BookAnswers<T> book(layer, in, formula, given);
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(name_of(set));
    AttentionOptions options = given;
    options.instruction_set = set;
    const Results<T> actual = forward(layer, in, mask, options, layout);
    book.hold("out", actual.out, book.exact.out, book.plain.out);
    book.hold("weights", actual.weights, book.exact.weights, book.plain.weights);
    book.hold("log_sum_exp", actual.log_sum_exp, book.exact.log_sum_exp, book.plain.log_sum_exp);
  }
}

// ---- By the book.

TYPED_TEST(LayerOf, EveryNumberOfKeyValueHeads) {
  for (const Index kv_heads : {1, 2, 3, 6}) {
    for (const Index queries : {1, 5, 19}) {
      AttentionConfig config = distinct_config();
      config.num_kv_heads = kv_heads;
      config.bias = kv_heads != 2;
      check(LayerMemory<TypeParam>(config, 1), LayerTensors<TypeParam>(config, 2, queries, 21),
            no_mask(), Formula{});
    }
  }
}

TYPED_TEST(LayerOf, EveryLayoutOfWeightsAndInputs) {
  for (const Layout layout : test::kAllLayouts) {
    const LayerMemory<TypeParam> memory(distinct_config(), 2, layout);
    check(memory, LayerTensors<TypeParam>(memory.config, 2, 18, 6, 50, layout), no_mask(),
          Formula{}, {}, layout);
  }
}

TYPED_TEST(LayerOf, MasksAndOptions) {
  const LayerMemory<TypeParam> memory(distinct_config(), 3);
  const std::vector<Index> lengths = {17, 9};
  const std::vector<double> sinks = {0.5, -1, 0, 1, 2, -2};
  AttentionOptions options;
  options.scale = 0.3;
  options.softcap = 2;
  options.sinks = sinks;
  options.dropout = {0.25, 7, 8};
  options.query_offset = 4;
  check(memory, LayerTensors<TypeParam>(memory.config, 2, 18, 20), causal() & key_lengths(lengths),
        test::keeps([&](Index b, Index, Index i, Index j) {
          return j <= i + 4 && j < lengths[static_cast<std::size_t>(b)];
        }),
        options);
}

// Keys and values that all sequences share.
TYPED_TEST(LayerOf, KeysOfOneBatchServeAll) {
  const LayerMemory<TypeParam> memory(distinct_config(), 4);
  const LayerTensors<TypeParam> shared(memory.config, 3, 5, 7, 50, Layout::contiguous, 1);
  LayerTensors<TypeParam> repeated(memory.config, 3, 5, 7);
  repeated.key.fill([&](Index, Index, Index i, Index d) { return shared.key(0, 0, i, d); });
  repeated.value.fill([&](Index, Index, Index i, Index d) { return shared.value(0, 0, i, d); });
  expect_same(forward(memory.layer(), shared), forward(memory.layer(), repeated), "shared keys");
}

// The layer is linear, scaled_dot_product_attention and linear again, to the last bit.
TYPED_TEST(LayerOf, IsMadeOfThePublicFunctions) {
  const LayerMemory<TypeParam> memory(distinct_config(), 5);
  const AttentionConfig& config = memory.config;
  AttentionOptions options;
  options.dropout = {0.25, 7, 8};
  for (const Index queries : {3, 30}) {
    const LayerTensors<TypeParam> in(config, 2, queries, 40);
    const Results<TypeParam> actual = forward(memory.layer(), in, causal_bottom_right(), options);

    const auto project = [](const TestTensor<TypeParam>& x, const LinearWeights<TypeParam>& w) {
      Tensor4Buffer<TypeParam> y({x.shape().batch, 1, x.shape().length, w.weight.length()});
      linear(x.view(), w, y);
      return y;
    };
    const auto split = [](Tensor4Buffer<TypeParam>& rows, Index heads) {
      const Shape4& s = rows.shape();
      return bshd(rows.data(), {s.batch, heads, s.length, s.dim / heads});
    };
    auto q = project(in.query, memory.query_weights());
    auto k = project(in.key, memory.key_weights());
    auto v = project(in.value, memory.value_weights());
    Tensor4Buffer<TypeParam> heads({2, 1, queries, config.num_heads * config.value_dim});
    Results<TypeParam> expected = test::results_of(config, in);
    scaled_dot_product_attention(split(q, config.num_heads), split(k, config.num_kv_heads),
                                 split(v, config.num_kv_heads), split(heads, config.num_heads),
                                 causal_bottom_right(), options, expected.extra());
    linear(heads, memory.output_weights(), expected.out.view());
    expect_same(actual, expected, "composition");
  }
}

// ---- The three layers are one.

TYPED_TEST(LayerOf, OneKeyValueHeadIsMultiQuery) {
  AttentionConfig config = distinct_config();
  config.num_kv_heads = 1;
  const LayerMemory<TypeParam> memory(config, 6);
  const LayerTensors<TypeParam> in(memory.config, 2, 18, 20);
  const auto layer = memory.template layer<MultiQueryAttention<TypeParam>>();
  expect_same(forward(memory.layer(), in, causal_bottom_right()),
              forward<TypeParam>(layer, in, causal_bottom_right()), "MQA");
}

TYPED_TEST(LayerOf, AllKeyValueHeadsAreMultiHead) {
  AttentionConfig config = distinct_config();
  config.num_kv_heads = 6;
  const LayerMemory<TypeParam> memory(config, 7);
  const LayerTensors<TypeParam> in(memory.config, 2, 18, 20);
  const auto layer = memory.template layer<MultiHeadAttention<TypeParam>>();
  expect_same(forward(memory.layer(), in, causal_bottom_right()),
              forward<TypeParam>(layer, in, causal_bottom_right()), "MHA");
}

TEST(Layers, SelfAttentionIsTheLayerOfOneTensor) {
  const LayerMemory<float> memory(config_of(12, 4, 2), 8);
  LayerTensors<float> in(memory.config, 2, 20, 20);
  in.key.fill([&](Index b, Index h, Index i, Index d) { return in.query(b, h, i, d); });
  in.value.fill([&](Index b, Index h, Index i, Index d) { return in.query(b, h, i, d); });
  Results<float> self = test::results_of(memory.config, in);
  memory.layer().forward(in.query.view(), self.out.view(), causal(), {}, self.extra());
  expect_same(self, forward(memory.layer(), in, causal()), "self-attention");

  // The plainest call, and with buffers for views.
  Tensor4Buffer<float> x(in.query.shape()), out(in.query.shape());
  test::for_each_index(
      x.shape(), [&](Index b, Index h, Index i, Index d) { x(b, h, i, d) = in.query(b, h, i, d); });
  memory.layer().forward(x, out);
  const Results<float> expected = forward(memory.layer(), in);
  EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
  memory.layer().forward(x, x, x, out);
  EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
}

TEST(Layers, SizesOfZero) {
  const LayerMemory<float> memory(distinct_config(), 10);
  // No key: nothing is attended to, the bias of the output projection is left.
  const LayerTensors<float> no_keys(memory.config, 2, 18, 0);
  const Results<float> outputs = forward(memory.layer(), no_keys);
  test::for_each_index(outputs.out.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(outputs.out(b, h, i, d), memory.output_bias(0, 0, 0, d));
  });
  EXPECT_EQ(outputs.log_sum_exp(1, 5, 17, 0), -test::infinity<float>());
  EXPECT_TRUE(
      forward(memory.layer(), LayerTensors<float>(memory.config, 0, 3, 4)).out.is_untouched());
  EXPECT_TRUE(
      forward(memory.layer(), LayerTensors<float>(memory.config, 2, 0, 4)).out.is_untouched());
}

}  // namespace
}  // namespace attn

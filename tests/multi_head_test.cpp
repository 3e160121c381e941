// The attention layers: held to the book, to the functions they are made of, and to each other.
#include "attn/layers/multi_head.hpp"
#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/allocations.hpp"
#include "support/layers.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using test::BookAnswers;
using test::config_of;
using test::Formula;
using test::LayerMemory;
using test::LayerTensors;
using test::Layout;
using test::message_of;
using test::same_bits;
using test::TestTensor;

template <class T>
class LayerOf : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double, half, bfloat16>;
TYPED_TEST_SUITE(LayerOf, ElementTypes, test::TypeNames);

/// Every size differs, and none follows from the others.
AttentionConfig distinct_config() {
  AttentionConfig config = config_of(10, 6, 3);
  config.head_dim = 5;
  config.value_dim = 4;
  config.key_input_dim = 7;
  config.value_input_dim = 9;
  return config;
}

template <class T>
struct LayerOutputs {
  using A = AccumulationType<T>;
  TestTensor<T> out;
  TestTensor<A> weights, log_sum_exp;

  LayerOutputs(const AttentionConfig& config, const LayerTensors<T>& in,
               Layout layout = Layout::contiguous)
      : out(in.query.shape(), layout),
        weights({in.query.shape().batch, config.num_heads, in.query.shape().length,
                 in.key.shape().length},
                layout),
        log_sum_exp({in.query.shape().batch, config.num_heads, in.query.shape().length, 1},
                    layout) {}
  AttentionOutputs<A> extra() { return {weights.view(), log_sum_exp.view()}; }
};

template <class T, class M = NoMask>
LayerOutputs<T> forward(const GroupedQueryAttention<T>& layer, const LayerTensors<T>& in,
                        const M& mask = M(), const AttentionOptions& options = {},
                        Layout layout = Layout::contiguous) {
  LayerOutputs<T> outputs(layer.config(), in, layout);
  layer.forward(in.query.view(), in.key.view(), in.value.view(), outputs.out.view(), mask, options,
                outputs.extra());
  return outputs;
}

template <class T>
void expect_same(const LayerOutputs<T>& a, const LayerOutputs<T>& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out.view(), b.out.view())) << "out: " << what;
  EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view())) << "weights: " << what;
  EXPECT_TRUE(same_bits(a.log_sum_exp.view(), b.log_sum_exp.view())) << "log_sum_exp: " << what;
}

/// With every instruction set, against the book.
template <class T, class M>
void check(const LayerMemory<T>& memory, const LayerTensors<T>& in, const M& mask,
           const Formula& formula, const AttentionOptions& given = {},
           Layout layout = Layout::contiguous) {
  const auto layer = memory.layer();
  const BookAnswers<T> book(layer, in, formula, given);
  for (const InstructionSet set : test::instruction_sets()) {
    SCOPED_TRACE(detail::name_of(set));
    AttentionOptions options = given;
    options.instruction_set = set;
    const LayerOutputs<T> actual = forward(layer, in, mask, options, layout);
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
    const LayerOutputs<TypeParam> actual =
        forward(memory.layer(), in, causal_bottom_right(), options);

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
    LayerOutputs<TypeParam> expected(config, in);
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
  LayerOutputs<float> self(memory.config, in);
  memory.layer().forward(in.query.view(), self.out.view(), causal(), {}, self.extra());
  expect_same(self, forward(memory.layer(), in, causal()), "self-attention");

  // The plainest call, and with buffers for views.
  Tensor4Buffer<float> x(in.query.shape()), out(in.query.shape());
  test::for_each_index(
      x.shape(), [&](Index b, Index h, Index i, Index d) { x(b, h, i, d) = in.query(b, h, i, d); });
  memory.layer().forward(x, out);
  const LayerOutputs<float> expected = forward(memory.layer(), in);
  EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
  memory.layer().forward(x, x, x, out);
  EXPECT_TRUE(same_bits(out.view(), expected.out.view()));
}

// A fused [3 * out, in] weight, cut into the three by slices.
TEST(Layers, FusedWeights) {
  const LayerMemory<float> memory(config_of(12, 4), 9);
  TestTensor<float> fused({1, 1, 36, 12}), biases({1, 1, 1, 36});
  const TestTensor<float>*const parts[] = {&memory.query, &memory.key, &memory.value},
                                *const part_biases[] = {&memory.query_bias, &memory.key_bias,
                                                        &memory.value_bias};
  fused.fill([&](Index, Index, Index o, Index d) { return (*parts[o / 12])(0, 0, o % 12, d); });
  biases.fill(
      [&](Index, Index, Index, Index o) { return (*part_biases[o / 12])(0, 0, 0, o % 12); });
  const auto part = [&](Index i) {
    return LinearWeights<float>{fused.view().slice_length(12 * i, 12),
                                biases.view().data() + 12 * i};
  };
  const MultiHeadAttention<float> layer(memory.config, part(0), part(1), part(2),
                                        memory.output_weights());
  const LayerTensors<float> in(memory.config, 2, 18, 20);
  expect_same(forward<float>(layer, in), forward(memory.layer(), in), "fused weights");
}

TEST(Layers, SizesOfZero) {
  const LayerMemory<float> memory(distinct_config(), 10);
  // No key: nothing is attended to, the bias of the output projection is left.
  const LayerTensors<float> no_keys(memory.config, 2, 18, 0);
  const LayerOutputs<float> outputs = forward(memory.layer(), no_keys);
  test::for_each_index(outputs.out.shape(), [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(outputs.out(b, h, i, d), memory.output_bias(0, 0, 0, d));
  });
  EXPECT_EQ(outputs.log_sum_exp(1, 5, 17, 0), -test::infinity<float>());
  EXPECT_TRUE(
      forward(memory.layer(), LayerTensors<float>(memory.config, 0, 3, 4)).out.is_untouched());
  EXPECT_TRUE(
      forward(memory.layer(), LayerTensors<float>(memory.config, 2, 0, 4)).out.is_untouched());
}

// ---- Layers that own their weights.

/// The entries of a projection's weight or bias, as doubles.
template <class T>
std::vector<double> entries(const Tensor4<const T>& tensor) {
  std::vector<double> all;
  test::for_each_index(tensor.shape(), [&](Index b, Index h, Index i, Index d) {
    all.push_back(static_cast<double>(test::widen(T(tensor(b, h, i, d)))));
  });
  return all;
}

/// Uniform within `limit`: the variance of n draws is limit^2 / 3, with a deviation of
/// limit^2 sqrt(4 / (45 n)), and their mean has one of limit / sqrt(3 n). Five deviations.
void expect_uniform(const std::vector<double>& draws, double limit) {
  const double n = static_cast<double>(draws.size());
  double mean = 0, variance = 0, largest = 0;
  for (const double x : draws) {
    mean += x / n;
    variance += x * x / n;
    largest = (std::max)(largest, std::abs(x));
  }
  EXPECT_LE(largest, limit);
  EXPECT_LE(std::abs(mean), 5 * limit / std::sqrt(3 * n));
  EXPECT_LE(std::abs(variance - limit * limit / 3), 5 * limit * limit * std::sqrt(4 / (45 * n)));
}

TYPED_TEST(LayerOf, OwnWeightsAreDrawnAsPyTorchsLinear) {
  AttentionConfig config = config_of(24, 4, 2);
  config.value_dim = 10;
  config.key_input_dim = 64;
  const GroupedQueryAttention<TypeParam> layer(config, 11);
  const auto check_part = [](const LinearWeights<TypeParam>& part, Index out, Index in) {
    EXPECT_EQ(part.weight.shape(), (Shape4{1, 1, out, in}));
    // Rounding to 16 bits may move a draw to the limit, which is not beyond it.
    const double limit = static_cast<double>(
        test::widen(test::to<TypeParam>(1 / std::sqrt(static_cast<double>(in)))));
    const double room = 1 + static_cast<double>(test::epsilon<TypeParam>());
    expect_uniform(entries(part.weight), limit * room);
    expect_uniform(entries(Tensor4<const TypeParam>(part.bias, {1, 1, 1, out})), limit * room);
  };
  check_part(layer.query_weights(), 24, 24);
  check_part(layer.key_weights(), 12, 64);
  check_part(layer.value_weights(), 20, 24);
  check_part(layer.output_weights(), 24, 40);
}

TEST(OwnWeights, XavierUniform) {
  AttentionConfig config = config_of(24, 4);
  const MultiHeadAttention<float> layer(config, 12, Initialization::xavier_uniform);
  expect_uniform(entries(layer.query_weights().weight), std::sqrt(6.0 / 48));
  for (Index i = 0; i < 24; ++i) EXPECT_EQ(layer.output_weights().bias[i], 0.0f);
}

TEST(OwnWeights, WithoutBias) {
  AttentionConfig config = config_of(8, 2);
  config.bias = false;
  const MultiHeadAttention<float> layer(config, 13);
  for (const auto* part : {&layer.query_weights(), &layer.key_weights(), &layer.value_weights(),
                           &layer.output_weights()}) {
    EXPECT_EQ(part->bias, nullptr);
  }
}

TEST(OwnWeights, FollowFromTheSeedAlone) {
  const MultiHeadAttention<float> layer(16, 4, 14), again(16, 4, 14), other(16, 4, 15);
  EXPECT_EQ(entries(layer.query_weights().weight), entries(again.query_weights().weight));
  EXPECT_NE(entries(layer.query_weights().weight), entries(other.query_weights().weight));
  // The parts of a layer are drawn independently.
  EXPECT_NE(entries(layer.query_weights().weight), entries(layer.key_weights().weight));
  EXPECT_NE(entries(layer.key_weights().weight), entries(layer.value_weights().weight));
  EXPECT_NE(entries(layer.value_weights().weight), entries(layer.output_weights().weight));
  // On every machine the same: draws that another program computed.
  EXPECT_EQ(layer.query_weights().weight(0, 0, 0, 0), 0x1.2a1ee4p-5f);
  EXPECT_EQ(layer.query_weights().weight(0, 0, 15, 15), 0x1.cc0c4ap-3f);
  EXPECT_EQ(layer.query_weights().bias[0], -0x1.ea079ep-3f);
  EXPECT_EQ(layer.output_weights().weight(0, 0, 0, 3), 0x1.ab5572p-3f);
  EXPECT_EQ(layer.output_weights().bias[15], -0x1.74ada6p-3f);
}

TEST(OwnWeights, AreRightAfterCopyAndMove) {
  const LayerTensors<float> in(MultiHeadAttention<float>(8, 2, 1).config(), 2, 5, 6);
  auto original = std::make_unique<MultiHeadAttention<float>>(8, 2, 16);
  const LayerOutputs<float> expected = forward<float>(*original, in);

  const MultiHeadAttention<float> copy(*original);
  MultiHeadAttention<float> assigned(8, 4, 17);
  assigned = *original;
  original.reset();
  expect_same(forward<float>(copy, in), expected, "a copy that outlives the original");
  expect_same(forward<float>(assigned, in), expected, "an assigned copy");

  const MultiHeadAttention<float> moved(std::move(assigned));
  expect_same(forward<float>(moved, in), expected, "a moved layer");
  MultiHeadAttention<float> move_assigned(8, 4, 18);
  move_assigned = MultiHeadAttention<float>(moved);
  expect_same(forward<float>(move_assigned, in), expected, "an assigned temporary");

  // One class underneath: as a value of the base, it is the same layer.
  const GroupedQueryAttention<float> base = copy;
  expect_same(forward(base, in), expected, "its base");
}

TEST(LayerAccessors, GiveWhatTheLayerReads) {
  const LayerMemory<float> memory(distinct_config(), 19);
  const auto layer = memory.layer();
  EXPECT_EQ(layer.query_weights().weight.data(), memory.query.view().data());
  EXPECT_EQ(layer.key_weights().weight.data(), memory.key.view().data());
  EXPECT_EQ(layer.value_weights().weight.data(), memory.value.view().data());
  EXPECT_EQ(layer.output_weights().weight.data(), memory.output.view().data());
  EXPECT_EQ(layer.query_weights().bias, memory.query_bias.view().data());
  EXPECT_EQ(layer.output_weights().bias, memory.output_bias.view().data());
  EXPECT_EQ(layer.config().value_input_dim, 9);
}

// ---- Bits, threads, memory.

TYPED_TEST(LayerOf, BitsDoNotDependOnTheExecutorOrTheWorkspace) {
  const LayerMemory<TypeParam> memory(distinct_config(), 20);
  const auto layer = memory.layer();
  for (const Index queries : {3, 70}) {
    const LayerTensors<TypeParam> in(memory.config, 3, queries, 90);
    const LayerOutputs<TypeParam> expected = forward(layer, in, causal_bottom_right());
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      AttentionOptions options;
      options.executor = &pool;
      expect_same(forward(layer, in, causal_bottom_right(), options), expected,
                  std::to_string(threads) + " threads");
      const std::size_t bytes = layer.workspace_bytes(in.query.view(), in.key.view(),
                                                      in.value.view(), no_mask(), options);
      for (const std::size_t shift : {0u, 1u, 63u}) {
        std::vector<char> workspace(bytes + shift + 64, static_cast<char>(0xFF));  // NaN
        options.workspace = {workspace.data() + shift, bytes};
        expect_same(forward(layer, in, causal_bottom_right(), options), expected, "workspace");
        for (std::size_t i = bytes + shift; i < workspace.size(); ++i) {
          ASSERT_EQ(workspace[i], static_cast<char>(0xFF)) << "written behind the workspace";
        }
      }
    }
  }
}

TYPED_TEST(LayerOf, BitsDoNotDependOnTheBatchOrTheExtraOutputs) {
  const LayerMemory<TypeParam> memory(distinct_config(), 21);
  const auto layer = memory.layer();
  for (const Index queries : {3, 40}) {
    const LayerTensors<TypeParam> in(memory.config, 3, queries, 50);
    const LayerOutputs<TypeParam> all = forward(layer, in);
    for (Index b = 0; b < 3; ++b) {
      TestTensor<TypeParam> out({1, 1, queries, memory.config.model_dim});
      layer.forward(in.query.view().slice_batch(b, 1), in.key.view().slice_batch(b, 1),
                    in.value.view().slice_batch(b, 1), out.view());
      EXPECT_TRUE(same_bits(out.view(), all.out.view().slice_batch(b, 1)));
    }
  }
}

TEST(Layers, ServeManyThreadsAtOnce) {
  const MultiHeadAttention<float> layer(24, 4, 22);
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&layer, &wrong, t] {
      const LayerTensors<float> in(layer.config(), 1, 10 + t, 10 + 3 * t,
                                   static_cast<std::uint64_t>(60 + t));
      const LayerOutputs<float> first = forward<float>(layer, in);
      for (int call = 0; call < 20; ++call) {
        const LayerOutputs<float> again = forward<float>(layer, in);
        if (!same_bits(first.out.view(), again.out.view())) ++wrong[static_cast<std::size_t>(t)];
      }
      // Alone, the same: neighbours left no trace in the first call either.
      const BookAnswers<float> book(layer, in);
      book.hold("out", first.out, book.exact.out, book.plain.out);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int w : wrong) EXPECT_EQ(w, 0);
}

TEST(LayerMemoryUse, IsOneAllocationAndNoneWithAWorkspace) {
  const MultiHeadAttention<float> layer(32, 4, 23);
  for (const Index length : {1, 40}) {
    const LayerTensors<float> in(layer.config(), 2, length, length);
    TestTensor<float> out(in.query.shape());
    AttentionOptions options;
    const std::size_t bytes = layer.workspace_bytes(in.query.view(), causal(), options);
    std::vector<char> workspace(bytes);
    test::allocations().reset();
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(test::allocations().count, 1u);
    EXPECT_LE(test::allocations().bytes, bytes);
    test::allocations().reset();
    options.workspace = {workspace.data(), bytes};
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(test::allocations().count, 0u);
  }
}

// Lanes and padding that no token fills are computed with, but never from what happens to lie in
// the workspace: signalling NaNs there raise no exception. More inputs than one depth (512), fewer
// tokens than a tile.
TEST(LayerMemoryUse, IsNotReadBeforeItIsWritten) {
  const MultiHeadAttention<float> layer(600, 3, 24);
  for (const Index length : {1, 20}) {
    const LayerTensors<float> in(layer.config(), 1, length, length);
    TestTensor<float> out(in.query.shape());
    const std::size_t bytes = layer.workspace_bytes(in.query.view());
    std::vector<std::uint32_t> workspace(bytes / 4 + 1, 0x7FA00001u);
    AttentionOptions options;
    options.workspace = {workspace.data(), bytes};
    std::feclearexcept(FE_ALL_EXCEPT);
    layer.forward(in.query.view(), out.view(), causal(), options);
    EXPECT_EQ(std::fetestexcept(FE_INVALID | FE_DIVBYZERO), 0) << length;
  }
}

// ---- Errors.

template <class Layer = GroupedQueryAttention<float>>
std::string config_error(const AttentionConfig& config) {
  return message_of<OptionError>([&] { Layer(config, 1); });
}

TEST(LayerErrors, OfConfigs) {
  EXPECT_EQ(config_error<MultiHeadAttention<float>>(config_of(10, 3)),
            "MultiHeadAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  EXPECT_EQ(config_error<MultiQueryAttention<float>>(config_of(10, 3)),
            "MultiQueryAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  EXPECT_EQ(config_error(config_of(12, 6, 4)),
            "GroupedQueryAttention: num_heads must be divisible by num_kv_heads; got num_heads 6, "
            "num_kv_heads 4");
  EXPECT_EQ(config_error<MultiHeadAttention<float>>(config_of(12, 6, 3)),
            "MultiHeadAttention: num_kv_heads must be num_heads (GroupedQueryAttention has any "
            "number); got num_kv_heads 3, num_heads 6");
  EXPECT_EQ(config_error<MultiQueryAttention<float>>(config_of(12, 6, 2)),
            "MultiQueryAttention: num_kv_heads must be 1 (GroupedQueryAttention has any number); "
            "got num_kv_heads 2, num_heads 6");
  EXPECT_EQ(config_error(config_of(0, 2)),
            "GroupedQueryAttention: model_dim and num_heads must be given; got model_dim 0");
  EXPECT_EQ(config_error(config_of(8, -1)),
            "GroupedQueryAttention: model_dim and num_heads must be given; got num_heads -1");
  const std::string negative = "GroupedQueryAttention: a size must not be negative; got ";
  const auto negative_error = [&](Index AttentionConfig::*size) {
    AttentionConfig config = config_of(8, 2);
    config.*size = -1;
    return config_error(config);
  };
  EXPECT_EQ(negative_error(&AttentionConfig::num_kv_heads), negative + "num_kv_heads -1");
  EXPECT_EQ(negative_error(&AttentionConfig::head_dim), negative + "head_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::value_dim), negative + "value_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::key_input_dim), negative + "key_input_dim -1");
  EXPECT_EQ(negative_error(&AttentionConfig::value_input_dim), negative + "value_input_dim -1");
  EXPECT_EQ(message_of<OptionError>([] { MultiHeadAttention<float>(10, 3, 1); }),
            "MultiHeadAttention: model_dim must be divisible by num_heads, or head_dim given; got "
            "model_dim 10, num_heads 3");
  // A head_dim of its own needs no division.
  AttentionConfig config = config_of(10, 3);
  config.head_dim = 4;
  EXPECT_EQ(MultiHeadAttention<float>(config, 1).config().value_dim, 4);
}

TEST(LayerErrors, OfWeights) {
  const LayerMemory<float> memory(distinct_config());
  const LinearWeights<float> right[] = {memory.query_weights(), memory.key_weights(),
                                        memory.value_weights(), memory.output_weights()};
  const auto error_with = [&](int part, Index out, Index in) {
    LinearWeights<float> w[] = {right[0], right[1], right[2], right[3]};
    w[part].weight = Tensor4<const float>(w[part].weight.data(), {1, 1, out, in});
    return message_of<ShapeError>(
        [&] { GroupedQueryAttention<float>(memory.config, w[0], w[1], w[2], w[3]); });
  };
  EXPECT_EQ(error_with(0, 10, 30),
            "GroupedQueryAttention: query weight must be [1, 1, num_heads * head_dim, model_dim]; "
            "got query weight [1, 1, 10, 30], key weight [1, 1, 15, 7], value weight [1, 1, 12, "
            "9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(1, 15, 9),
            "GroupedQueryAttention: key weight must be [1, 1, num_kv_heads * head_dim, "
            "key_input_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 9], value "
            "weight [1, 1, 12, 9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(2, 24, 9),
            "GroupedQueryAttention: value weight must be [1, 1, num_kv_heads * value_dim, "
            "value_input_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 7], value "
            "weight [1, 1, 24, 9], output weight [1, 1, 10, 24]");
  EXPECT_EQ(error_with(3, 24, 10),
            "GroupedQueryAttention: output weight must be [1, 1, model_dim, num_heads * "
            "value_dim]; got query weight [1, 1, 30, 10], key weight [1, 1, 15, 7], value weight "
            "[1, 1, 12, 9], output weight [1, 1, 24, 10]");
  EXPECT_EQ(
      message_of<ShapeError>([&] { MultiHeadAttention<float>(config_of(4, 2), {}, {}, {}, {}); }),
      "MultiHeadAttention: query weight must be [1, 1, num_heads * head_dim, model_dim]; got "
      "query weight [0, 0, 0, 0], key weight [0, 0, 0, 0], value weight [0, 0, 0, 0], output "
      "weight [0, 0, 0, 0]");
}

/// A call that is right until a test spoils it.
struct LayerCall {
  Shape4 query{2, 1, 4, 10}, key{2, 1, 6, 7}, value{2, 1, 6, 9}, out{2, 1, 4, 10};
  Shape4 weights{2, 6, 4, 6}, log_sum_exp{2, 6, 4, 1};
  AnyMask mask;
  AttentionOptions options;

  template <class Error>
  std::string error() const {
    const LayerMemory<float> memory(distinct_config());
    TestTensor<float> query_(query), key_(key), value_(value), out_(out), weights_(weights),
        lse_(log_sum_exp);
    const std::string text = message_of<Error>([&] {
      memory.layer().forward(query_.view(), key_.view(), value_.view(), out_.view(), mask, options,
                             {weights_.view(), lse_.view()});
    });
    EXPECT_TRUE(out_.is_untouched());
    EXPECT_TRUE(weights_.is_untouched());
    EXPECT_TRUE(lse_.is_untouched());
    return text;
  }
};

TEST(LayerErrors, OfShapes) {
  const auto error_of = [](const auto& spoil) {
    LayerCall call;
    spoil(call);
    return call.error<ShapeError>();
  };
  const std::string inputs = "; got query [2, 1, 4, 10], key [2, 1, 6, 7], value [2, 1, 6, 9]";
  EXPECT_EQ(error_of([](LayerCall& c) { c.query.dim = 8; }),
            "GroupedQueryAttention::forward: query must be [batch, 1, length, model_dim] with "
            "model_dim 10; got query [2, 1, 4, 8], key [2, 1, 6, 7], value [2, 1, 6, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.query.heads = 2; }),
            "GroupedQueryAttention::forward: query must be [batch, 1, length, model_dim] with "
            "model_dim 10; got query [2, 2, 4, 10], key [2, 1, 6, 7], value [2, 1, 6, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.key.dim = 10; }),
            "GroupedQueryAttention::forward: key must be [batch, 1, length, key_input_dim] with "
            "key_input_dim 7; got query [2, 1, 4, 10], key [2, 1, 6, 10], value [2, 1, 6, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.value.dim = 7; }),
            "GroupedQueryAttention::forward: value must be [batch, 1, length, value_input_dim] "
            "with value_input_dim 9; got query [2, 1, 4, 10], key [2, 1, 6, 7], value [2, 1, 6, "
            "7]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.key.batch = 3; }),
            "GroupedQueryAttention::forward: key must have the batch of query, or 1; got query [2, "
            "1, 4, 10], key [3, 1, 6, 7], value [2, 1, 6, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.value.batch = 4; }),
            "GroupedQueryAttention::forward: value must have the batch of query, or 1; got query "
            "[2, 1, 4, 10], key [2, 1, 6, 7], value [4, 1, 6, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.value.length = 5; }),
            "GroupedQueryAttention::forward: key and value must have the same length; got query "
            "[2, 1, 4, 10], key [2, 1, 6, 7], value [2, 1, 5, 9]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.out.dim = 24; }),
            "GroupedQueryAttention::forward: out must be [batch of query, 1, length of query, "
            "model_dim]" +
                inputs + ", out [2, 1, 4, 24]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.weights.heads = 3; }),
            "GroupedQueryAttention::forward: weights must be [batch of query, num_heads, length of "
            "query, length of key]" +
                inputs + ", out [2, 1, 4, 10], weights [2, 3, 4, 6]");
  EXPECT_EQ(error_of([](LayerCall& c) { c.log_sum_exp.length = 3; }),
            "GroupedQueryAttention::forward: log_sum_exp must be [batch of query, num_heads, "
            "length of query, 1]" +
                inputs + ", out [2, 1, 4, 10], weights [2, 6, 4, 6], log_sum_exp [2, 6, 3, 1]");
  const std::string all =
      inputs + ", out [2, 1, 4, 10], weights [2, 6, 4, 6], log_sum_exp [2, 6, 4, 1]";
  EXPECT_EQ(error_of([](LayerCall& c) { c.mask = causal(); }),
            "GroupedQueryAttention::forward: causal() needs as many queries as keys, or a "
            "position: use causal_top_left() (offset 0), causal_bottom_right() (offset Sk - Sq), "
            "causal_from(offset) or options.query_offset" +
                all);
  const bool dropped[5] = {};
  EXPECT_EQ(error_of([&](LayerCall& c) {
              c.mask = drop_where(Tensor4<const bool>(dropped, {1, 1, 1, 5}));
            }),
            "GroupedQueryAttention::forward: the drop_where mask must have the shape of the "
            "scores, or 1, on every axis: scores [2, 6, 4, 6]" +
                all + ", drop_where mask [1, 1, 1, 5]");
  const std::vector<double> sinks = {1, 2};
  EXPECT_EQ(error_of([&](LayerCall& c) { c.options.sinks = sinks; }),
            "GroupedQueryAttention::forward: options.sinks must hold one number a query head, 6, "
            "got 2" +
                all);
}

TEST(LayerErrors, OfSelfAttention) {
  const LayerMemory<float> memory(config_of(8, 2));
  TestTensor<float> x({2, 1, 4, 6}), out({2, 1, 4, 8});
  EXPECT_EQ(message_of<ShapeError>([&] { memory.layer().forward(x.view(), out.view()); }),
            "GroupedQueryAttention::forward: x must be [batch, 1, length, model_dim] with "
            "model_dim 8; got x [2, 1, 4, 6]");
  AttentionConfig other = config_of(8, 2);
  other.value_input_dim = 6;
  const MultiHeadAttention<float> cross(other, 1);
  TestTensor<float> right({2, 1, 4, 8});
  EXPECT_EQ(message_of<ShapeError>([&] { cross.forward(right.view(), out.view()); }),
            "MultiHeadAttention::forward: x must be [batch, 1, length, value_input_dim] with "
            "value_input_dim 6; got x [2, 1, 4, 8]");
  EXPECT_TRUE(out.is_untouched());
}

TEST(LayerErrors, OfOptions) {
  const std::string all =
      "; got query [2, 1, 4, 10], key [2, 1, 6, 7], value [2, 1, 6, 9], out [2, 1, 4, 10], weights "
      "[2, 6, 4, 6], log_sum_exp [2, 6, 4, 1]";
  LayerCall call;
  call.options.scale = test::quiet_nan<double>();
  EXPECT_EQ(call.error<OptionError>().rfind("GroupedQueryAttention::forward: options.scale must "
                                            "be finite",
                                            0),
            0u);
  call = LayerCall();
  call.options.dropout.probability = 1.5;
  EXPECT_EQ(call.error<OptionError>(),
            "GroupedQueryAttention::forward: options.dropout.probability must lie within 0 and 1, "
            "got 1.5" +
                all);
  call = LayerCall();
  char little[8];
  call.options.workspace = {little, sizeof little};
  const LayerMemory<float> memory(distinct_config());
  const LayerTensors<float> in(memory.config, 2, 4, 6);
  EXPECT_EQ(call.error<OptionError>(),
            "GroupedQueryAttention::forward: options.workspace is too small: "
            "GroupedQueryAttention::workspace_bytes asks for " +
                std::to_string(memory.layer().workspace_bytes(in.query.view(), in.key.view(),
                                                              in.value.view())) +
                " bytes, got 8" + all);
}

TEST(LayerErrors, OfOverlaps) {
  LayerMemory<float> memory(config_of(4, 2));
  const auto layer = memory.layer();
  std::vector<float> data(200);
  const Tensor4<float> x(data.data(), {1, 1, 3, 4});
  const auto error_of = [&](const Tensor4<float>& out, const Tensor4<float>& weights = {}) {
    return message_of<ShapeError>([&] {
      layer.forward(x, out, no_mask(), {}, AttentionOutputs<float>{weights, {}});
    });
  };
  const Tensor4<float> apart(data.data() + 100, {1, 1, 3, 4});
  EXPECT_EQ(error_of(x),
            "GroupedQueryAttention::forward: out overlaps x in memory; got x [1, 1, 3, 4], out [1, "
            "1, 3, 4]");
  EXPECT_EQ(error_of(Tensor4<float>(memory.value.view().data(), {1, 1, 3, 4})),
            "GroupedQueryAttention::forward: out overlaps a weight of the layer in memory; got x "
            "[1, 1, 3, 4], out [1, 1, 3, 4]");
  EXPECT_EQ(error_of(apart, Tensor4<float>(memory.key_bias.view().data(), {1, 2, 3, 3})),
            "GroupedQueryAttention::forward: weights overlaps a bias of the layer in memory; got x "
            "[1, 1, 3, 4], out [1, 1, 3, 4], weights [1, 2, 3, 3]");
  EXPECT_EQ(error_of(apart, Tensor4<float>(data.data() + 105, {1, 2, 3, 3})),
            "GroupedQueryAttention::forward: weights overlaps out in memory; got x [1, 1, 3, 4], "
            "out [1, 1, 3, 4], weights [1, 2, 3, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              layer.forward(x, Tensor4<float>(nullptr, {1, 1, 3, 4}));
            }),
            "GroupedQueryAttention::forward: out is not empty, but its pointer is null; got x [1, "
            "1, 3, 4], out [1, 1, 3, 4]");
}

}  // namespace
}  // namespace attn

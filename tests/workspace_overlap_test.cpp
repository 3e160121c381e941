// A workspace that shares memory with what a call reads or writes is refused, before anything is
// written: in linear, in layers, over caches and in blocks.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/kv_cache.hpp"
#include "attn/layers/attention_block.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/multi_head.hpp"
#include "support/layers.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

/// Large enough for every call of this file; its last bytes are given to the tensor in question.
struct Memory {
  std::vector<double> words = std::vector<double>(1 << 17);

  char* end() { return reinterpret_cast<char*>(words.data() + words.size()); }
  Workspace all() { return {words.data(), words.size() * sizeof(double)}; }
  /// The last numbers, as a tensor with the elements of `from`.
  template <class T>
  Tensor4<T> last(Tensor4<const T> from) {
    const Shape4& shape = from.shape();
    const Tensor4<T> copy(
        reinterpret_cast<T*>(end() - static_cast<std::size_t>(shape.size()) * sizeof(T)), shape);
    for_each_index(
        shape, [&](Index b, Index h, Index i, Index d) { copy(b, h, i, d) = from(b, h, i, d); });
    return copy;
  }
  /// All but the last bytes that `tensor` takes.
  template <class T>
  Workspace before(Tensor4<T> tensor) {
    return {words.data(),
            all().bytes - static_cast<std::size_t>(tensor.shape().size()) * sizeof(T)};
  }
};

/// Runs call(tensor, workspace) with the tensor at the end of the memory: beside the workspace it
/// is right, and within it `name` is refused.
template <class T, class Call>
void expect_overlap(const std::string& function, const char* name, Tensor4<const T> tensor,
                    const Call& call) {
  SCOPED_TRACE(function + ": " + name);
  Memory memory;
  const Tensor4<T> placed = memory.last(tensor);
  const std::vector<double> before = memory.words;
  const std::string expected =
      function + ": options.workspace overlaps " + name + " in memory; got ";
  EXPECT_EQ(message_of<ShapeError>([&] { call(placed, memory.all()); }).substr(0, expected.size()),
            expected);
  EXPECT_EQ(memory.words, before);
  EXPECT_EQ(message_of<ShapeError>([&] { call(placed, memory.before(placed)); }),
            "(nothing was thrown)");
}

TEST(WorkspaceOverlap, IsRefusedByLinear) {
  TestTensor<float> x({2, 1, 5, 6}), weight({1, 1, 7, 6}), bias({1, 1, 1, 7}), out({2, 1, 5, 7});
  x.fill_uniform(1);
  weight.fill_uniform(2);
  bias.fill_uniform(3);
  out.fill_value(0);
  const auto run = [](Tensor4<const float> from, const LinearWeights<float>& weights,
                      Tensor4<float> to, const Workspace& workspace) {
    LinearOptions options;
    options.workspace = workspace;
    linear(from, weights, to, options);
  };
  const auto constant = [](const TestTensor<float>& tensor) { return tensor.view(); };
  expect_overlap("linear", "x", constant(x), [&](Tensor4<float> placed, const Workspace& w) {
    run(placed, {weight.view(), bias.view().data()}, out.view(), w);
  });
  expect_overlap("linear", "weight", constant(weight),
                 [&](Tensor4<float> placed, const Workspace& w) {
                   run(x.view(), {placed, bias.view().data()}, out.view(), w);
                 });
  expect_overlap("linear", "bias", constant(bias), [&](Tensor4<float> placed, const Workspace& w) {
    run(x.view(), {weight.view(), placed.data()}, out.view(), w);
  });
  expect_overlap("linear", "out", constant(out), [&](Tensor4<float> placed, const Workspace& w) {
    run(x.view(), {weight.view(), bias.view().data()}, placed, w);
  });
}

constexpr Index kModel = 12, kHeads = 3;

/// A layer whose tensors can be replaced one by one, and a call of it.
struct LayerCall {
  LayerMemory<float> memory{config_of(kModel, kHeads)};
  LayerTensors<float> in{memory.config, 2, 5, 7};
  TestTensor<float> out{in.query.shape()}, weights{{2, kHeads, 5, 7}}, sum{{2, kHeads, 5, 1}};
  TestTensor<float> gamma{{1, 1, 1, 4}}, features{{1, 1, 1, kModel}}, bias{{1, 1, 5, 7}};

  LayerCall() {
    for (TestTensor<float>* tensor : {&out, &weights, &sum, &gamma, &features, &bias}) {
      tensor->fill_value(1);
    }
  }

  /// What a call uses; a test puts one of them into other memory.
  struct Views {
    Tensor4<const float> query, key, value, bias;
    LinearWeights<float> projection[4];
    RmsNormWeights<float> query_norm, key_norm;
    LayerNormWeights<float> norm;
    Tensor4<float> out, weights, sum;
  };
  Views views() {
    Views v;
    v.query = in.query.view();
    v.key = in.key.view();
    v.value = in.value.view();
    v.bias = bias.view();
    v.projection[0] = memory.query_weights();
    v.projection[1] = memory.key_weights();
    v.projection[2] = memory.value_weights();
    v.projection[3] = memory.output_weights();
    v.query_norm = v.key_norm = {gamma.view().data(), 1e-6};
    v.norm = {features.view().data(), features.view().data()};
    v.out = out.view();
    v.weights = weights.view();
    v.sum = sum.view();
    return v;
  }
  GroupedQueryAttention<float> layer(const Views& v) const {
    GroupedQueryAttention<float> made(memory.config, v.projection[0], v.projection[1],
                                      v.projection[2], v.projection[3]);
    made.set_query_key_norm(v.query_norm, v.key_norm);
    return made;
  }
};

AttentionOptions options_with(const Workspace& workspace) {
  AttentionOptions options;
  options.workspace = workspace;
  return options;
}

/// Each tensor of a pass within the workspace. run(views, workspace) makes the call.
template <class Run>
void expect_overlaps_of_a_pass(LayerCall& call, const std::string& function, bool is_self,
                               const Run& run) {
  using Views = LayerCall::Views;
  const Views views = call.views();
  const auto expect = [&](const char* name, Tensor4<const float> tensor, const auto& replace) {
    expect_overlap(function, name, tensor, [&](Tensor4<float> placed, const Workspace& w) {
      Views replaced = views;
      replace(replaced, placed);
      run(replaced, w);
    });
  };
  using Placed = Tensor4<float>;
  expect(is_self ? "x" : "query", views.query, [](Views& v, Placed p) { v.query = p; });
  expect("out", views.out, [](Views& v, Placed p) { v.out = p; });
  expect("add_bias bias", views.bias, [](Views& v, Placed p) { v.bias = p; });
  for (int i = 0; i < 4; ++i) {
    expect("a weight of the layer", views.projection[i].weight,
           [i](Views& v, Placed p) { v.projection[i].weight = p; });
    const Tensor4<const float> bias(views.projection[i].bias,
                                    {1, 1, 1, views.projection[i].weight.length()});
    expect("a bias of the layer", bias,
           [i](Views& v, Placed p) { v.projection[i].bias = Span<float>(p.data(), p.dim()); });
  }
  const Tensor4<const float> gamma = call.gamma.view();
  expect("a norm of the layer", gamma, [](Views& v, Placed p) { v.query_norm.gamma = p.data(); });
  expect("a norm of the layer", gamma, [](Views& v, Placed p) { v.key_norm.gamma = p.data(); });
}

TEST(WorkspaceOverlap, IsRefusedByLayers) {
  LayerCall call;
  const auto forward = [&](const LayerCall::Views& v, const Workspace& workspace) {
    call.layer(v).forward(v.query, v.key, v.value, v.out, add_bias(v.bias), options_with(workspace),
                          {v.weights, v.sum});
  };
  const std::string function = "GroupedQueryAttention::forward";
  expect_overlaps_of_a_pass(call, function, false, forward);
  const LayerCall::Views views = call.views();
  const auto expect = [&](const char* name, Tensor4<const float> tensor, const auto& replace) {
    expect_overlap(function, name, tensor, [&](Tensor4<float> placed, const Workspace& w) {
      LayerCall::Views replaced = views;
      replace(replaced, placed);
      forward(replaced, w);
    });
  };
  using Placed = Tensor4<float>;
  expect("key", views.key, [](auto& v, Placed p) { v.key = p; });
  expect("value", views.value, [](auto& v, Placed p) { v.value = p; });
  expect("weights", views.weights, [](auto& v, Placed p) { v.weights = p; });
  expect("log_sum_exp", views.sum, [](auto& v, Placed p) { v.sum = p; });
}

TEST(WorkspaceOverlap, IsRefusedByBlocks) {
  LayerCall call;
  const LayerCall::Views views = call.views();
  const Tensor4<const float> features = call.features.view();
  const auto forward = [&](const LayerCall::Views& v, const Workspace& workspace) {
    AttentionBlock<float>(call.layer(v), 0, v.norm)
        .forward(v.query, v.key, v.value, v.out, no_mask(), options_with(workspace));
  };
  expect_overlap("AttentionBlock::forward", "gamma of the block", features,
                 [&](Tensor4<float> placed, const Workspace& w) {
                   LayerCall::Views replaced = views;
                   replaced.norm.gamma = placed.data();
                   forward(replaced, w);
                 });
  expect_overlap("AttentionBlock::forward", "beta of the block", features,
                 [&](Tensor4<float> placed, const Workspace& w) {
                   LayerCall::Views replaced = views;
                   replaced.norm.beta = placed.data();
                   forward(replaced, w);
                 });
  expect_overlap("AttentionBlock::forward", "a weight of the layer", views.projection[2].weight,
                 [&](Tensor4<float> placed, const Workspace& w) {
                   LayerCall::Views replaced = views;
                   replaced.projection[2].weight = placed;
                   forward(replaced, w);
                 });
}

TEST(WorkspaceOverlap, IsRefusedByStepsOverCaches) {
  LayerCall call;
  call.bias = TestTensor<float>({1, 1, 5, 5});
  call.bias.fill_value(1);
  expect_overlaps_of_a_pass(call, "GroupedQueryAttention::step", true,
                            [&](const LayerCall::Views& v, const Workspace& workspace) {
                              KeyValueCache<float> cache(2, kHeads, 8, 4);
                              call.layer(v).step(v.query, cache, v.out, add_bias(v.bias),
                                                 options_with(workspace));
                            });
  // The memory of a cache, of which the call sees a part.
  const auto expect_cache = [&](const char* name, const auto& cache_over) {
    Memory memory;
    float* const last = reinterpret_cast<float*>(memory.end()) - 2 * kHeads * 8 * 4;
    KeyValueCache<float> cache = cache_over(Tensor4<float>(last, {2, kHeads, 8, 4}));
    const LayerCall::Views v = call.views();
    const std::string expected = std::string(
                                     "GroupedQueryAttention::step: options.workspace "
                                     "overlaps ") +
                                 name + " in memory; got ";
    EXPECT_EQ(message_of<ShapeError>([&] {
                call.layer(v).step(v.query, cache, v.out, no_mask(), options_with(memory.all()));
              }).substr(0, expected.size()),
              expected);
    EXPECT_EQ(cache.length(0), 0);
    call.layer(v).step(v.query, cache, v.out, no_mask(),
                       options_with(memory.before(Tensor4<float>(last, {2, kHeads, 8, 4}))));
    EXPECT_EQ(cache.length(0), 5);
  };
  Tensor4Buffer<float> other({2, kHeads, 8, 4});
  expect_cache("cached keys",
               [&](Tensor4<float> placed) { return KeyValueCache<float>(placed, other.view()); });
  expect_cache("cached values",
               [&](Tensor4<float> placed) { return KeyValueCache<float>(other.view(), placed); });
}

}  // namespace
}  // namespace test
}  // namespace attn

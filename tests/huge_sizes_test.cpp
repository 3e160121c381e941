// Sizes that overflow: each is refused with the sizes named, wherever one comes in, and nothing
// computes with it before (which -fsanitize=undefined sees).
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kMost = (std::numeric_limits<Index>::max)();
constexpr Index kLeast = (std::numeric_limits<Index>::min)();
constexpr Index kHuge = Index{1} << 62, kHalf = Index{1} << 31;

TEST(CheckedSize, IsExactUntilItDoesNotFit) {
  using detail::CheckedSize;
  const std::vector<Index> values = {
      0, 1, 2, 3, kHalf - 1, kHalf, kHalf + 1, 2 * kHalf, kHuge - 1024, kHuge};
  for (const Index a : values) {
    for (const Index b : values) {
      // Whether they fit is decided by the rounded numbers, which keep their order.
      const double product = static_cast<double>(a) * static_cast<double>(b);
      const double sum = static_cast<double>(a) + static_cast<double>(b);
      const auto most = static_cast<double>(kMost);
      EXPECT_EQ((CheckedSize(a) * b).fits(), product < most) << a << ", " << b;
      EXPECT_EQ((CheckedSize(a) + b).fits(), sum < most) << a << ", " << b;
      if (product < most) {
        EXPECT_EQ((CheckedSize(a) * b).value(), a * b);
      }
      if (sum < most) {
        EXPECT_EQ((CheckedSize(a) + b).value(), a + b);
      }
    }
  }
  EXPECT_FALSE((CheckedSize(kHuge) * 2 * 0).fits());
  EXPECT_FALSE((CheckedSize(-1) * 0).fits());
  EXPECT_FALSE((CheckedSize(-1) + 1).fits());
}

TEST(HugeSizes, ShapesCountWithoutOverflow) {
  EXPECT_EQ((Shape4{kHuge, kHuge, 0, kHuge}).size(), 0);
  EXPECT_EQ((Shape4{kHuge, 2, 1, 1}).size(), kMost);
  EXPECT_EQ((Shape4{kHalf, kHalf, 1, 1}).size(), kHuge);
}

TEST(HugeSizes, ViewsOfNothingAreMadeAndSliced) {
  const Tensor4<float> none(nullptr, Shape4{0, kHuge, kHuge, kHuge});
  EXPECT_EQ(none.shape(), (Shape4{0, kHuge, kHuge, kHuge}));
  EXPECT_EQ(none.slice_heads(kHuge - 1, 0).heads(), 0);
  EXPECT_EQ(bshd<float>(nullptr, Shape4{0, kHuge, kHuge, kHuge}).stride().dim, 1);
  EXPECT_EQ(bsd<float>(nullptr, 0, kHuge, kHuge).length(), kHuge);
  EXPECT_EQ(hsd<float>(nullptr, kHuge, 0, kHuge).heads(), kHuge);
  // Made, but no range of a negative axis.
  const Tensor4<float> negative(nullptr, Shape4{1, 1, kLeast, 1});
  EXPECT_THROW(negative.slice_length(0, 1), ShapeError);
  EXPECT_THROW(negative.slice_length(0, kMost), ShapeError);
}

TEST(HugeSizes, StridesOfSingleAxesAreNotUsed) {
  float element = 3;
  for (const Index stride : {kMost, kLeast}) {
    const Tensor4<float> one(&element, Shape4{1, 1, 1, 1}, Stride4{stride, stride, stride, stride});
    EXPECT_EQ(one(0, 0, 0, 0), 3);
    EXPECT_EQ(one.matrix(0, 0)(0, 0), 3);
    EXPECT_EQ(one.slice_length(0, 1)(0, 0, 0, 0), 3);
    EXPECT_EQ(one.slice_heads(1, 0).heads(), 0);
    EXPECT_TRUE(detail::overlaps(detail::TensorRef(one), detail::TensorRef(one)));
    EXPECT_TRUE(detail::is_within_reach(detail::TensorRef(one)));
  }
}

TEST(HugeSizes, BuffersAreRefused) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor4Buffer<float>({kHuge, 0, 0, 0});
            }),
            "Tensor4Buffer: negative or too large: shape [4611686018427387904, 0, 0, 0]");
  EXPECT_THROW(Tensor4Buffer<float>({0, kHalf, kHalf, 2}), ShapeError);
  EXPECT_THROW(Tensor4Buffer<double>({kHalf, kHalf / 4, 1, 1}), ShapeError);  // 2^63 bytes
}

TEST(HugeSizes, CachesAreRefused) {
  EXPECT_EQ(message_of<ShapeError>([] { KeyValueCache<float>(kHuge, 0, 0, 0); }),
            "KeyValueCache: too large, its size in bytes overflows; got batch 4611686018427387904, "
            "num_kv_heads 0, head_dim 0, value_dim 0, capacity 0");
  EXPECT_THROW(KeyValueCache<float>(1, kHalf, kHalf, 1), ShapeError);
  EXPECT_THROW(KeyValueCache<float>(1, 1, 1, 1, kHuge), ShapeError);
  EXPECT_EQ(message_of<ShapeError>([] { RollingKeyValueCache<float>(1, 0, kHuge, 1, 1, kHuge); }),
            "RollingKeyValueCache: too large, its size in bytes overflows; got batch 1, "
            "num_kv_heads 0, head_dim 1, value_dim 1, window 4611686018427387904, longest_append "
            "4611686018427387904");
  EXPECT_THROW(RollingKeyValueCache<float>(kHuge, 0, 1, 0), ShapeError);
  EXPECT_THROW(RollingKeyValueCache<float>(1, 1, kMost, 1, 1, kMost), ShapeError);
  EXPECT_EQ(message_of<ShapeError>([] { PagedKeyValueCache<float>(kHalf, 1, kHalf / 2, 0, 0); }),
            "PagedKeyValueCache: too large, its size in bytes overflows; got batch 1073741824, "
            "num_kv_heads 0, head_dim 0, value_dim 0, num_pages 2147483648, page_length 1");
  EXPECT_THROW(PagedKeyValueCache<float>(kHuge, kHuge, 1, 0, 0), ShapeError);
  EXPECT_THROW(PagedKeyValueCache<float>(1, 1, kHuge, 0, 0), ShapeError);
  EXPECT_THROW(PagedKeyValueCache<float>(-kHuge, kHuge, 1, 0, 0), ShapeError);
  // A stream is endless, but its positions are counted.
  RollingKeyValueCache<double> stream(1, 0, 1, 1);
  const Tensor4<double> many(nullptr, Shape4{1, 0, kHuge / 64, 1});
  for (int i = 0; i < 127; ++i) stream.append(many, many);
  EXPECT_THROW(stream.append(many, many), ShapeError);
  EXPECT_EQ(stream.length(0), 127 * (kHuge / 64));
}

// One call of each kind, whose first input is `x`.
struct Inputs {
  float numbers[4] = {};
  Tensor4<float> one{numbers, Shape4{1, 1, 1, 1}};
};

TEST(HugeSizes, CallsRefuseViewsThatCannotBe) {
  Inputs in;
  const std::vector<Tensor4<float>> too_large = {
      {nullptr, Shape4{0, kHuge, 1, 1}},
      {in.numbers, Shape4{kHalf, 1, kHalf, 1}, Stride4{}},
  };
  const std::vector<Tensor4<float>> too_far = {
      {in.numbers, Shape4{1, 1, 2, 1}, Stride4{0, 0, kMost, 1}},
      {in.numbers, Shape4{1, 1, 2, 1}, Stride4{0, 0, kLeast, 1}},
      {in.numbers, Shape4{2, 1, 2, 1}, Stride4{kHuge / 4, 0, kHuge / 4, 1}},
  };
  EXPECT_EQ(message_of<ShapeError>(
                [&] { scaled_dot_product_attention(in.one, too_large[0], in.one, in.one); }),
            "scaled_dot_product_attention: k [0, 4611686018427387904, 1, 1] is too large: sizes in "
            "bytes overflow; got q [1, 1, 1, 1], k [0, 4611686018427387904, 1, 1]");
  EXPECT_EQ(
      message_of<ShapeError>(
          [&] { scaled_dot_product_attention(in.one, in.one, too_far[0], in.one); }),
      "scaled_dot_product_attention: v has strides [0, 0, 9223372036854775807, 0], which lead "
      "too far: offsets in bytes overflow; got q [1, 1, 1, 1], k [1, 1, 1, 1], v [1, 1, 2, "
      "1]");
  std::vector<Tensor4<float>> all = too_large;
  all.insert(all.end(), too_far.begin(), too_far.end());
  for (const Tensor4<float>& x : all) {
    EXPECT_THROW(scaled_dot_product_attention(x, in.one, in.one, in.one), ShapeError);
    EXPECT_THROW(scaled_dot_product_attention(in.one, in.one, in.one, x), ShapeError);
    EXPECT_THROW(scaled_dot_product_attention(in.one, in.one, in.one, in.one,
                                              add_bias(Tensor4<const float>(x))),
                 ShapeError);
    EXPECT_THROW(attention_workspace_bytes(x, in.one, in.one), ShapeError);
    EXPECT_THROW(inspect_attention(x, in.one, in.one, 0, 0), ShapeError);
    EXPECT_THROW(merge_attention(x, in.one, in.one, in.one, in.one, in.one), ShapeError);
    EXPECT_THROW(linear(x, LinearWeights<float>{in.one, {}}, in.one), ShapeError);
    EXPECT_THROW(linear(in.one, LinearWeights<float>{x, {}}, in.one), ShapeError);
    EXPECT_THROW(layer_norm(x, LayerNormWeights<float>(), in.one), ShapeError);
    EXPECT_THROW(rms_norm(x, RmsNormWeights<float>(), in.one), ShapeError);
    EXPECT_THROW(KeyValueCache<float>(x, in.one), ShapeError);
    EXPECT_THROW(KeyValueCache<float>(in.one, x), ShapeError);
    KeyValueCache<float> cache(1, 1, 1, 1);
    EXPECT_THROW(cache.append(x, in.one), ShapeError);
    EXPECT_THROW(scaled_dot_product_attention(x, cache, in.one), ShapeError);
    const RotaryEmbedding rotary(2, RotaryPairing::half_split);
    EXPECT_THROW(rotary.apply(x, 0), ShapeError);
    const std::vector<Index> starts = {0, 1};
    EXPECT_THROW(ragged_attention(x, in.one, in.one, in.one, starts), ShapeError);
    const MultiHeadAttention<float> layer(1, 1, 1);
    EXPECT_THROW(layer.forward(x, in.one), ShapeError);
    EXPECT_THROW(layer.step(x, cache, in.one), ShapeError);
  }
}

TEST(HugeSizes, ResultsThatCannotBeAreRefused) {
  // Each view alone is small; what they give is not.
  float number = 1;
  const Tensor4<float> q(&number, Shape4{1, kHalf, 8, 1}, Stride4{});
  const Tensor4<float> k(&number, Shape4{1, 1, kHalf, 1}, Stride4{});
  const Tensor4<float> v(&number, Shape4{1, 1, kHalf, kHalf / 4}, Stride4{});
  EXPECT_THROW(scaled_dot_product_attention(q, k, v), ShapeError);
  const Tensor4<float> few(&number, Shape4{1, 1, 8, 1}, Stride4{});
  const Tensor4<float> endless(&number, Shape4{1, 1, kHuge / 4, 1}, Stride4{});
  EXPECT_THROW(scaled_dot_product_attention(few, endless, endless, no_mask(), {}, Want::weights),
               ShapeError);
}

TEST(HugeSizes, WorkspacesThatCannotBeAreRefused) {
  float number = 1;
  const auto all_one = [&](const Shape4& shape) {
    return Tensor4<float>(&number, shape, Stride4{});
  };
  constexpr Index kMany = Index{1} << 20;
  // Partial results of each split of the keys.
  const Tensor4<float> many_heads = all_one({1, kMany, kMany << 14, 1});
  EXPECT_EQ(message_of<ShapeError>([&] {
              attention_workspace_bytes(all_one({kMany, kMany, 1, 1}), many_heads, many_heads);
            }),
            "attention_workspace_bytes: the call is too large: the size of its partial results "
            "overflows; got q [1048576, 1048576, 1, 1], k [1, 1048576, 17179869184, 1], v [1, "
            "1048576, 17179869184, 1]");
  // Converted rows.
  const Index wide = Index{1} << 56;
  EXPECT_THROW(attention_workspace_bytes(all_one({1, 1, 1, wide}), all_one({1, 1, 1, wide}),
                                         all_one({1, 1, 1, 1})),
               ShapeError);
  EXPECT_THROW(linear(all_one({1, 1, 1, wide}), LinearWeights<float>{all_one({1, 1, 1, wide}), {}},
                      all_one({1, 1, 1, 1})),
               ShapeError);
  // What a layer projects.
  AttentionConfig config;
  config.model_dim = 1;
  config.num_heads = 1;
  config.head_dim = Index{1} << 12;
  const GroupedQueryAttention<float> layer(config, 1);
  const Tensor4<float> x = all_one({kMany, 1, kMany * kMany / 64, 1});
  EXPECT_THROW(layer.workspace_bytes(x), ShapeError);
  const Tensor4<float> alone = all_one({1, 1, Index{1} << 54, 1});
  KeyValueCache<float> cache(1, 1, 4, config.head_dim);
  EXPECT_THROW(layer.append(alone, alone, cache), ShapeError);
  EXPECT_THROW(layer.step_workspace_bytes(alone, cache), ShapeError);
  EXPECT_EQ(cache.length(0), 0);
  // Far, and possible.
  EXPECT_GT(attention_workspace_bytes(all_one({1, 1, 1, 1}), all_one({1, 1, kMany * kMany, 1}),
                                      all_one({1, 1, kMany * kMany, 1})),
            0u);
}

AttentionConfig config_of(Index model_dim, Index num_heads, Index head_dim = 0) {
  AttentionConfig config;
  config.model_dim = model_dim;
  config.num_heads = num_heads;
  config.head_dim = head_dim;
  return config;
}

TEST(HugeSizes, ConfigsAreRefused) {
  const AttentionConfig wide = config_of(4 * kHalf, 1);
  EXPECT_EQ(message_of<OptionError>([&] { MultiHeadAttention<float>(wide, 1); }),
            "MultiHeadAttention: too many weights, their size in bytes overflows; got model_dim "
            "8589934592, num_heads 1, num_kv_heads 1, head_dim 8589934592, value_dim 8589934592, "
            "key_input_dim 8589934592, value_input_dim 8589934592");
  std::vector<AttentionConfig> configs = {wide, config_of(kHalf, kHalf, 1), config_of(1, kHuge, 8),
                                          config_of(kHuge, 1, 1), config_of(kHuge, kHuge)};
  configs.push_back(config_of(8, 2));
  configs.back().value_dim = kHuge;
  configs.push_back(config_of(8, 2));
  configs.back().key_input_dim = kHuge / 4;
  configs.push_back(config_of(8, 2));
  configs.back().value_input_dim = kMost;
  for (const AttentionConfig& config : configs) {
    const LinearWeights<float> none;
    EXPECT_THROW(GroupedQueryAttention<float>(config, 1), OptionError);
    EXPECT_THROW(GroupedQueryAttention<float>(config, none, none, none, none), OptionError);
    EXPECT_THROW(MultiHeadAttention<double>(config, 1), OptionError);
    EXPECT_THROW(AttentionBlock<float>(config, 1), OptionError);
    EXPECT_THROW(attention_cost("layer", config, 1), OptionError);
    EXPECT_THROW(attention_costs(config, 1), OptionError);
  }
  EXPECT_THROW(MultiQueryAttention<float>(wide, 1), OptionError);
  EXPECT_THROW(MultiHeadAttention<float>(4 * kHalf, 1, 1), OptionError);
}

TEST(HugeSizes, CostsOfCachesAreRefused) {
  EXPECT_EQ(message_of<OptionError>([] { attention_cost("layer", config_of(8, 2), 1, kHuge); }),
            "attention_cost: the bytes of a cached token overflow; got num_kv_heads 2, head_dim 4, "
            "value_dim 4, element_bytes 4611686018427387904");
  // Huge, and possible.
  const AttentionCost cost = attention_cost("layer", config_of(Index{1} << 28, 1), kMost, 8);
  EXPECT_EQ(cost.parameters, (Index{1} << 58) + (Index{1} << 30));
  EXPECT_EQ(cost.cache_bytes, Index{1} << 32);
}

TEST(HugeSizes, NumbersABatchStayWithinTheirRange) {
  EXPECT_EQ((PerBatch(kLeast) - 5)[0], kLeast);
  EXPECT_EQ((PerBatch(kMost) + 5)[0], kMost);
  EXPECT_EQ((PerBatch(3) - kLeast)[0], kMost);
  EXPECT_EQ((PerBatch(-3) - kLeast)[0], kMost - 2);
  EXPECT_EQ((PerBatch(kLeast) - kLeast)[0], 0);
  EXPECT_EQ((PerBatch(-1) - kMost)[0], kLeast);
  const std::vector<std::int64_t> numbers = {kLeast, 0, kMost};
  const PerBatch shifted = PerBatch(numbers) - 5, raised = PerBatch(numbers) + 5;
  EXPECT_EQ(shifted[0], kLeast);
  EXPECT_EQ(shifted[1], -5);
  EXPECT_EQ(shifted[2], kMost - 5);
  EXPECT_EQ(raised[0], kLeast + 5);
  EXPECT_EQ(raised[2], kMost);
}

TEST(HugeSizes, RotaryPositionsAreRefused) {
  const RotaryEmbedding rotary(2, RotaryPairing::half_split);
  float numbers[4] = {1, 2, 3, 4};
  const Tensor4<float> x(numbers, Shape4{1, 1, 2, 2});
  EXPECT_EQ(message_of<ShapeError>([&] { rotary.apply(x, kMost); }),
            "RotaryEmbedding::apply: positions overflow: the first one is 9223372036854775807; got "
            "x [1, 1, 2, 2]");
  const std::vector<Index> first = {kMost - 1};
  EXPECT_THROW(rotary.apply(x, first), ShapeError);
  EXPECT_EQ(numbers[0], 1);
  rotary.apply(x, kMost - 2);
  rotary.apply(x, kLeast);
  const std::vector<std::int64_t> positions = {kMost, kLeast};
  rotary.apply(x, Tensor4<const std::int64_t>(positions.data(), Shape4{1, 1, 2, 1}));
  EXPECT_THROW(RotaryEmbedding(kHuge, RotaryPairing::half_split), OptionError);
}

TEST(InstructionSet, NumbersThatNameNoneAreRefused) {
  for (const int number : {-5, -1, 6, 99}) {
    const auto set = static_cast<InstructionSet>(number);
    EXPECT_FALSE(detail::is_available(set, active_instruction_set()));
    AttentionOptions options;
    options.instruction_set = set;
    Inputs in;
    float out = 0;
    EXPECT_THROW(
        scaled_dot_product_attention(in.one, in.one, in.one,
                                     Tensor4<float>(&out, Shape4{1, 1, 1, 1}), no_mask(), options),
        OptionError);
    LinearOptions linear_options;
    linear_options.instruction_set = set;
    EXPECT_THROW(linear(in.one, LinearWeights<float>{in.one, {}},
                        Tensor4<float>(&out, Shape4{1, 1, 1, 1}), linear_options),
                 OptionError);
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

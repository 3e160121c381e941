// Public bug reports: dims and lengths that fill no tile, and value dims of their own.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"
#include "support/special_memory.hpp"

namespace attn {
namespace test {
namespace {

using Eigen::bfloat16;

// 66RING/tiny-flash-attention#12: wrong unless length and dim are powers of two.
TEST(Tails, D31EveryDimWithEveryLength) {
  for (const Index dim :
       {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 72, 80, 96, 127, 160, 192, 256, 576}) {
    for (const Index length : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 1000}) {
      SCOPED_TRACE(::testing::Message() << "dim " << dim << ", length " << length);
      // The large ones with a few queries, or the references would take minutes.
      const Index queries = length * length * dim < 30000 ? length : 3;
      const Sizes sizes{1, 1, 1, 1, queries, length, dim, dim};
      expect_attention<float>(Inputs<float>(sizes), AnyMask(), Formula{});
      if (length < 200) expect_attention<bfloat16>(Inputs<bfloat16>(sizes), AnyMask(), Formula{});
    }
  }
}

// microsoft/onnxruntime#28357: the value dim differs from the key dim.
TEST(Tails, D32ValueDimOfItsOwn) {
  const Index dims[][2] = {{192, 128}, {576, 512}, {4, 7}, {7, 1}};
  for (const auto& dim : dims) {
    SCOPED_TRACE(::testing::Message() << "dims " << dim[0] << " and " << dim[1]);
    expect_attention<float>(Inputs<float>({2, 4, 2, 2, 5, 9, dim[0], dim[1]}), AnyMask(),
                            Formula{});
  }
  const float q[] = {2, 0, 0, 0}, k[] = {1, 0, 0, 0, 0, 0, 0, 0}, v[] = {1, 0};
  const auto result = scaled_dot_product_attention(bhsd(q, {1, 1, 1, 4}), bhsd(k, {1, 1, 2, 4}),
                                                   bhsd(v, {1, 1, 2, 1}), AnyMask());
  // The scale is 1 / sqrt(key dim); with the value dim this would be 0.880797. Tolerance: a score
  // of 1, its exponential, sum and division.
  EXPECT_NEAR(result.output(0, 0, 0, 0), 0.731058579, 12 * 0x1p-23);
}

// ggml-org/llama.cpp#29034: the padding of the last tile goes through the softcap and counts.
TEST(Tails, D33PaddingOfTheLastTileNeverCounts) {
  for (const Index keys : {1, 63, 64, 65, 127, 128, 129}) {
    for (const Index queries : {1, 40}) {
      SCOPED_TRACE(::testing::Message() << keys << " keys, " << queries << " queries");
      AttentionOptions options;
      options.softcap = 1;
      const MeanProbe<> zero_scores(queries, keys, [](Index) { return 1.0; });
      expect_means(zero_scores.outputs(AnyMask(), options),
                   std::vector<double>(static_cast<std::size_t>(queries), 1));

      options.softcap = 50;
      options.scale = 1;
      MeanProbe<> low_scores(queries, keys, [](Index) { return 1.0; });
      low_scores.q.fill_value(10);
      low_scores.k.fill_value(-10);
      expect_means(low_scores.outputs(AnyMask(), options),
                   std::vector<double>(static_cast<std::size_t>(queries), 1));
    }
  }
}

/// All tensors of a call at the end of their memory, against the same in the middle of NaNs.
template <class T>
void expect_nothing_beyond_the_end_is_read(const Sizes& sizes) {
  using A = AccumulationType<T>;
  const Inputs<T> in(sizes);
  TestTensor<bool> keep(sizes.scores());
  TestTensor<T> bias(sizes.scores());
  keep.fill([](Index, Index, Index i, Index j) { return (i + 3 * j) % 5 != 0; });
  bias.fill_uniform(7);
  TestTensor<T> out(sizes.out());
  TestTensor<A> weights(sizes.scores()), lse(sizes.rows());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view(),
                               AnyMask(keep_where(keep.view()) & add_bias(bias.view())), {},
                               AttentionOutputs<A>{weights.view(), lse.view()});
  EXPECT_TRUE(out.gaps_are_untouched());
  EXPECT_TRUE(weights.gaps_are_untouched());
  EXPECT_TRUE(lse.gaps_are_untouched());

  GuardedTensor<T> q(sizes.q()), k(sizes.k()), v(sizes.v()), guarded_out(sizes.out());
  GuardedTensor<bool> guarded_keep(sizes.scores());
  GuardedTensor<T> guarded_bias(sizes.scores());
  GuardedTensor<A> guarded_weights(sizes.scores()), guarded_lse(sizes.rows());
  q.copy(in.q.view());
  k.copy(in.k.view());
  v.copy(in.v.view());
  guarded_keep.copy(keep.view());
  guarded_bias.copy(bias.view());
  scaled_dot_product_attention(
      q.view(), k.view(), v.view(), guarded_out.view(),
      AnyMask(keep_where(guarded_keep.view()) & add_bias(guarded_bias.view())), {},
      AttentionOutputs<A>{guarded_weights.view(), guarded_lse.view()});
  EXPECT_TRUE(same_bits(guarded_out.view(), out.view()));
  EXPECT_TRUE(same_bits(guarded_weights.view(), weights.view()));
  EXPECT_TRUE(same_bits(guarded_lse.view(), lse.view()));
}

// pytorch/pytorch#169222: keys beyond the end are read where Sk is no multiple of 32.
TEST(Tails, D34NothingBeyondTheEndIsRead) {
  for (const Index dim : {64, 96, 128}) {
    for (const Index keys : {1, 31, 33, 38, 39, 70}) {
      for (Index queries = 1; queries <= 8; ++queries) {
        SCOPED_TRACE(::testing::Message()
                     << queries << " queries, " << keys << " keys, dim " << dim);
        expect_nothing_beyond_the_end_is_read<float>({1, 2, 1, 1, queries, keys, dim, dim});
      }
    }
  }
  // The other types and many rows, with dims that fill no register.
  for (const Index queries : {1, 3, 21}) {
    const Sizes sizes{2, 2, 1, 2, queries, 39, 13, 27};
    expect_nothing_beyond_the_end_is_read<float>(sizes);
    expect_nothing_beyond_the_end_is_read<double>(sizes);
    expect_nothing_beyond_the_end_is_read<Eigen::half>(sizes);
    expect_nothing_beyond_the_end_is_read<bfloat16>(sizes);
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

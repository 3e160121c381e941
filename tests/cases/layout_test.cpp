// Public bug reports: views that are not contiguous.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.hpp"
#include "cases/probes.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

const Sizes kSizes{2, 4, 2, 2, 5, 9, 7, 6};

/// The output in a layout of its own, for inputs in theirs.
template <class T>
TestTensor<T> attend(const TestTensor<T>& q, const TestTensor<T>& k, const TestTensor<T>& v,
                     const AnyMask& mask, Layout layout) {
  TestTensor<T> out({q.shape().batch, q.shape().heads, q.shape().length, v.shape().dim}, layout);
  scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), mask);
  EXPECT_TRUE(out.gaps_are_untouched());
  return out;
}

// pytorch/pytorch#187506: the kernel takes the last axis for contiguous.
TEST(Layout, D20InnerStridesOtherThanOne) {
  const Inputs<float> plain(kSizes);
  TestTensor<bool> keep(kSizes.scores()), strided_keep(kSizes.scores(), Layout::inner_stride);
  const auto kept = [](Index b, Index h, Index i, Index j) { return (b + h + 2 * i + j) % 3 != 0; };
  keep.fill(kept);
  strided_keep.fill(kept);
  const TestTensor<float> expected =
      attend(plain.q, plain.k, plain.v, keep_where(keep.view()), Layout::contiguous);
  expect_attention<float>(plain, AnyMask(keep_where(keep.view())), keeps(kept));
  for (const Layout layout : {Layout::inner_stride, Layout::permuted, Layout::mixed}) {
    const Inputs<float> in(kSizes, 1, layout);
    const TestTensor<float> out = attend(in.q, in.k, in.v, keep_where(strided_keep.view()), layout);
    EXPECT_TRUE(same_bits(out.view(), expected.view()));
  }
}

TEST(Layout, D20InnerStrideZeroRepeatsAnElement) {
  Inputs<float> in(kSizes);
  const Shape4 k = kSizes.k(), v = kSizes.v();
  in.k = TestTensor<float>(k, Stride4{k.heads * k.length, k.length, 1, 0});
  in.v = TestTensor<float>(v, Stride4{v.heads * v.length, v.length, 1, 0});
  in.k.fill([](Index b, Index h, Index j, Index) { return 0.25f * static_cast<float>(b - h + j); });
  in.v.fill([](Index b, Index h, Index j, Index) { return static_cast<float>(b + h - j); });
  expect_attention<float>(in, AnyMask(), Formula{});
}

// daphne-project/daphne#700: the pitch of a row is taken for its length.
TEST(Layout, D21PitchIsNotLength) {
  const Shape4 shape{1, 2, 3, 5};
  const Stride4 pitch_8{192, 96, 8, 1}, pitch_9{0, 27, 9, 1};
  TestTensor<float> contiguous[3], padded[3];
  for (std::uint64_t i = 0; i < 3; ++i) {
    contiguous[i] = TestTensor<float>(shape);
    padded[i] = TestTensor<float>(shape, pitch_8);
    contiguous[i].fill_uniform(i);
    padded[i].fill_uniform(i);
  }
  const TestTensor<float> expected =
      attend(contiguous[0], contiguous[1], contiguous[2], AnyMask(), Layout::contiguous);
  TestTensor<float> out(shape, pitch_9);
  scaled_dot_product_attention(padded[0].view(), padded[1].view(), padded[2].view(), out.view(),
                               AnyMask());
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  EXPECT_TRUE(out.gaps_are_untouched());
}

// onnx/onnx#7118: (batch, length, heads * dim) is reshaped to (batch, heads, length, dim).
TEST(Layout, D22HeadsAreColumnsOfAPackedMatrix) {
  const float packed[] = {1, 2, 3, 4};  // two tokens of two heads
  const Shape4 shape{1, 2, 2, 1};
  const float zero[4] = {};
  float out[4];
  scaled_dot_product_attention(bshd(zero, shape), bshd(packed, shape), bshd(packed, shape),
                               bshd(out, shape), AnyMask());
  for (int token = 0; token < 2; ++token) {
    EXPECT_EQ(out[2 * token], 2.0f);
    EXPECT_EQ(out[2 * token + 1], 3.0f);
  }
}

// huggingface/candle#3703: transposed views give wrong numbers in the fused path.
TEST(Layout, D23LayoutIsNotMeaning) {
  const Layout bhsd_ = Layout::contiguous, bshd_ = Layout::bshd, transposed = Layout::permuted;
  for (const Index queries : {1, 17}) {
    const Sizes sizes{2, 4, 2, 2, queries, 33, 8, 16};
    const Inputs<float> plain(sizes);
    const TestTensor<float> expected =
        attend(plain.q, plain.k, plain.v, causal_bottom_right(), bhsd_);
    const Layout layouts[][4] = {{bshd_, bshd_, bshd_, bshd_},
                                 {bshd_, bhsd_, transposed, bhsd_},
                                 {bhsd_, transposed, bshd_, bshd_},
                                 {transposed, bshd_, bhsd_, transposed}};
    for (const auto& layout : layouts) {
      const Inputs<float> in(sizes, 1, layout[0], layout[1], layout[2]);
      const TestTensor<float> out = attend(in.q, in.k, in.v, causal_bottom_right(), layout[3]);
      EXPECT_TRUE(same_bits(out.view(), expected.view())) << queries << " queries";
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace attn

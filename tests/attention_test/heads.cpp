// Which heads and batches of keys and values a query sees.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "attention_test/distinct.hpp"
#include "attn/attention.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace {

using test::expect_attention;
using test::Formula;
using test::Inputs;
using test::Layout;
using test::Sizes;
using test::TestTensor;

TEST(Heads, NeighbouringQueryHeadsShareAKeyHead) {
  for (const auto& [query_heads, key_heads, value_heads] :
       std::vector<std::tuple<Index, Index, Index>>{{6, 2, 2},
                                                    {6, 2, 3},
                                                    {6, 3, 2},
                                                    {6, 6, 1},
                                                    {6, 1, 6},
                                                    {12, 4, 6},
                                                    {8, 8, 8},
                                                    {5, 1, 1}}) {
    for (const Index queries : {1, 9}) {
      const Sizes sizes{2, query_heads, key_heads, value_heads, queries, 6, 4, 3};
      SCOPED_TRACE(sizes);
      expect_attention<float>(Inputs<float>(sizes, 31), no_mask(), Formula{});
    }
  }
  // One key: out is the value head's number itself.
  const Sizes sizes{1, 6, 1, 2, 1, 1, 1, 1};
  Inputs<float> in(sizes);
  in.v.fill([](Index, Index h, Index, Index) { return static_cast<float>(h); });
  TestTensor<float> out(sizes.out());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out.view());
  const float expected[] = {0, 0, 0, 1, 1, 1};
  for (Index h = 0; h < 6; ++h) EXPECT_EQ(out(0, h, 0, 0), expected[h]);
}

TEST(Heads, KeysAndValuesOfOneBatchServeAll) {
  for (const bool shares_keys : {true, false}) {
    for (const bool shares_values : {true, false}) {
      for (const Index queries : {2, 17}) {
        Sizes sizes = kDistinct;
        sizes.batch = 3;
        sizes.query_length = queries;
        Inputs<float> in(sizes, 32);
        Shape4 k = sizes.k(), v = sizes.v();
        if (shares_keys) k.batch = 1;
        if (shares_values) v.batch = 1;
        in.k = TestTensor<float>(k, Layout::padded);
        in.v = TestTensor<float>(v, Layout::bshd);
        in.k.fill_uniform(1);
        in.v.fill_uniform(2);
        expect_attention<float>(in, no_mask(), Formula{});
      }
    }
  }
}

TEST(Heads, BroadcastViewsAreReadThroughTheirStrides) {
  for (const Index queries : {2, 17}) {
    Sizes sizes = kDistinct;
    sizes.query_length = queries;
    Inputs<float> in(sizes, 33);
    in.q = TestTensor<float>(sizes.q(), Stride4{0, 10, 0, 1});  // all batches, all queries
    in.k = TestTensor<float>(sizes.k(), Stride4{40, 0, 3, 0});  // all heads, all dims
    in.v = TestTensor<float>(sizes.v(), Stride4{0, 0, 0, 0});   // a single number
    in.q.fill_uniform(1);
    in.k.fill_uniform(2);
    in.v.fill_uniform(3);
    expect_attention<float>(in, no_mask(), Formula{});
  }
}

}  // namespace
}  // namespace attn

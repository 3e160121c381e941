// Public bug reports: memory that grows with the square of the length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "attn/attn.hpp"
#include "support/allocations.hpp"

namespace attn {
namespace test {
namespace {

/// What one call allocates: 16 heads, a boolean mask [1, 1, length, length].
std::size_t bytes_of_a_call(Index length) {
  const Shape4 shape{1, 16, length, 16};
  Tensor4Buffer<float> q(shape), k(shape), v(shape), out(shape);
  Tensor4Buffer<std::uint8_t> keep({1, 1, length, length});
  std::fill_n(keep.data(), keep.size(), std::uint8_t{1});
  const AnyMask mask = keep_where(keep.view());
  allocations().reset();
  scaled_dot_product_attention(q.view(), k.view(), v.view(), out.view(), mask);
  return allocations().bytes;
}

// ByteDance-Seed/Depth-Anything-3#268: the mask is copied for every head.
TEST(Memory, D50MaskIsNeverCopied) {
  const std::size_t small = bytes_of_a_call(512), large = bytes_of_a_call(1024);
  // A byte an element and head would be 4 MiB and 16 MiB, the scores of one head 1 MiB and 4 MiB.
  EXPECT_LE(small, 512u * 1024u);
  EXPECT_EQ(large, small);
}

TEST(Memory, CounterSeesBuffers) {
  allocations().reset();
  const Tensor4Buffer<float> buffer({1, 1, 10, 10});
  EXPECT_GE(allocations().bytes, 400u);
}

}  // namespace
}  // namespace test
}  // namespace attn

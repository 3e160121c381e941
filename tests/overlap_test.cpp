#include "attn/config.hpp"

#include "attn/detail/call/overlap.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "attn/tensor.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

using detail::overlaps;
using detail::TensorRef;

/// Whether two views share an address, by listing them all.
template <class T>
bool share_an_address(const Tensor4<T>& a, const Tensor4<T>& b) {
  std::set<const T*> addresses;
  test::for_each_index(
      a.shape(), [&](Index n, Index h, Index i, Index d) { addresses.insert(&a(n, h, i, d)); });
  bool shared = false;
  test::for_each_index(b.shape(), [&](Index n, Index h, Index i, Index d) {
    shared = shared || addresses.count(&b(n, h, i, d)) > 0;
  });
  return shared;
}

/// Whether the addresses between the first and the last of each intersect.
template <class T>
bool ranges_meet(const Tensor4<T>& a, const Tensor4<T>& b) {
  const detail::ByteRange x{TensorRef(a)}, y{TensorRef(b)};
  return x.begin < y.end && y.begin < x.end;
}

TEST(ByteRange, ReachesFromTheLowestToTheHighestElement) {
  std::vector<float> memory(100);
  float* const first = memory.data() + 50;
  const detail::ByteRange range{
      TensorRef(Tensor4<float>(first, {2, 3, 4, 5}, Stride4{-10, 3, -2, 4}))};
  const auto address = [&](Index element) {
    return reinterpret_cast<std::uintptr_t>(first + element);
  };
  EXPECT_EQ(range.begin, address(-10 - 2 * 3));
  EXPECT_EQ(range.end, address(3 * 2 + 4 * 4 + 1));
}

// Two random views over one small buffer. What overlaps is always found; where equal strides nest,
// nothing else is refused.
TEST(Overlap, AgreesWithTheSetOfAddresses) {
  std::vector<float> memory(4000);
  int exact = 0, overlapping = 0, interleaved = 0;
  for (std::uint64_t round = 0; round < 40000; ++round) {
    std::uint64_t draws = 0;
    const auto below = [&](Index bound) {
      return static_cast<Index>(
          test::uniform_below(round, draws++, static_cast<std::uint64_t>(bound)));
    };
    // Extents of both views, and strides that nest in a random order of the axes.
    Index a[4], b[4], stride[4];
    for (int axis = 0; axis < 4; ++axis) {
      a[axis] = 1 + below(3);
      b[axis] = 1 + below(3);
    }
    int order[4] = {0, 1, 2, 3};
    for (int i = 3; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
    Index next = 1 + below(3);
    for (const int axis : order) {
      stride[axis] = (below(4) == 0 ? -1 : 1) * next;
      next = next * (std::max)(a[axis], b[axis]) + below(3);
    }
    const Index shift_a = below(12), shift_b = below(12);
    const Stride4 strides{stride[0], stride[1], stride[2], stride[3]};
    float* const middle = memory.data() + 2000;
    const Tensor4<float> x(middle + shift_a, {a[0], a[1], a[2], a[3]}, strides);
    const Tensor4<float> y(middle + shift_b, {b[0], b[1], b[2], b[3]}, strides);

    const bool shared = share_an_address(x, y);
    EXPECT_EQ(overlaps(TensorRef(x), TensorRef(y)), shared) << "round " << round;
    EXPECT_EQ(overlaps(TensorRef(y), TensorRef(x)), shared) << "round " << round;
    ++exact;
    overlapping += shared;
    interleaved += !shared && ranges_meet(x, y);
  }
  // The draw is not one-sided.
  EXPECT_GT(overlapping, exact / 10);
  EXPECT_GT(interleaved, exact / 50);
}

// Any strides at all, different ones too: an overlap is never missed, and views whose address
// ranges do not meet are never refused.
TEST(Overlap, IsNeverMissed) {
  std::vector<float> memory(4000);
  int refused = 0;
  for (std::uint64_t round = 0; round < 40000; ++round) {
    std::uint64_t draws = 0;
    const auto below = [&](Index bound) {
      return static_cast<Index>(
          test::uniform_below(~round, draws++, static_cast<std::uint64_t>(bound)));
    };
    const auto random_view = [&] {
      const Shape4 shape{1 + below(3), 1 + below(3), 1 + below(3), 1 + below(3)};
      const Stride4 stride{below(41) - 20, below(21) - 10, below(11) - 5, below(5) - 2};
      return Tensor4<float>(memory.data() + 2000 + below(60), shape, stride);
    };
    const Tensor4<float> x = random_view(), y = random_view();
    const bool found = overlaps(TensorRef(x), TensorRef(y));
    if (share_an_address(x, y)) {
      EXPECT_TRUE(found) << "round " << round;
    }
    if (!ranges_meet(x, y)) {
      EXPECT_FALSE(found) << "round " << round;
    }
    refused += found;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 39000);
}

TEST(Overlap, SlicesOfAPackedProjectionAreApart) {
  // (batch, length, 3 x heads x dim): q, k and v side by side in each row.
  const Index batch = 2, length = 5, heads = 3, dim = 4, row = 3 * heads * dim;
  std::vector<float> memory(static_cast<std::size_t>(batch * length * row));
  const Shape4 shape{batch, heads, length, dim};
  const Stride4 stride{length * row, dim, row, 1};
  const auto part = [&](Index shift) {
    return TensorRef(Tensor4<float>(memory.data() + shift, shape, stride));
  };
  const Index part_size = heads * dim;
  EXPECT_FALSE(overlaps(part(0), part(part_size)));
  EXPECT_FALSE(overlaps(part(0), part(2 * part_size)));
  EXPECT_FALSE(overlaps(part(2 * part_size), part(part_size)));
  EXPECT_TRUE(overlaps(part(0), part(0)));
  EXPECT_TRUE(overlaps(part(0), part(part_size - 1)));  // one column is shared
  EXPECT_TRUE(overlaps(part(0), part(1)));
  EXPECT_TRUE(overlaps(part(dim), part(0)));
}

TEST(Overlap, EvenAndOddElementsAreApart) {
  std::vector<double> memory(64);
  const Stride4 stride{32, 16, 4, 2};
  const TensorRef even(Tensor4<double>(memory.data(), {2, 2, 4, 2}, stride));
  const TensorRef odd(Tensor4<double>(memory.data() + 1, {2, 2, 4, 2}, stride));
  EXPECT_FALSE(overlaps(even, odd));
  EXPECT_TRUE(overlaps(even, even));
}

TEST(Overlap, OtherElementSizesMeetByTheirRanges) {
  alignas(8) unsigned char memory[64] = {};
  const TensorRef floats(
      Tensor4<float>(reinterpret_cast<float*>(memory), {1, 1, 1, 4}, Stride4{0, 0, 0, 2}));
  const TensorRef between(Tensor4<std::uint8_t>(memory + 4, {1, 1, 1, 4}));
  EXPECT_TRUE(overlaps(floats, between));  // they interleave, but that is not told apart
  const TensorRef behind(Tensor4<std::uint8_t>(memory + 28, {1, 1, 1, 4}));
  EXPECT_FALSE(overlaps(floats, behind));
  const TensorRef last(Tensor4<std::uint8_t>(memory + 27, {1, 1, 1, 4}));
  EXPECT_TRUE(overlaps(floats, last));
}

TEST(Overlap, NothingOverlapsAnEmptyOrMissingView) {
  std::vector<float> memory(16);
  const TensorRef all(Tensor4<float>(memory.data(), {1, 1, 4, 4}));
  EXPECT_FALSE(overlaps(all, TensorRef(Tensor4<float>(memory.data(), {1, 1, 0, 4}))));
  EXPECT_FALSE(overlaps(TensorRef(Tensor4<float>(memory.data(), {0, 1, 4, 4})), all));
  EXPECT_FALSE(overlaps(all, TensorRef(Tensor4<float>())));
  EXPECT_FALSE(overlaps(all, TensorRef(Tensor4<float>(nullptr, {1, 1, 4, 4}))));
}

TEST(Overlap, ABroadcastInputCountsOnce) {
  std::vector<float> memory(32);
  const Tensor4<float> out(memory.data() + 16, {2, 2, 2, 2});
  const Tensor4<float> apart(memory.data(), {2, 2, 2, 2}, Stride4{0, 0, 2, 1});
  const Tensor4<float> inside(memory.data() + 20, {2, 2, 2, 2}, Stride4{0, 0, 2, 1});
  EXPECT_FALSE(overlaps(TensorRef(out), TensorRef(apart)));
  EXPECT_TRUE(overlaps(TensorRef(out), TensorRef(inside)));
}

}  // namespace
}  // namespace attn

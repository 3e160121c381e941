#include "attn/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace {

using test::for_each_index;
using test::Layout;
using test::message_of;
using test::TestTensor;

const Shape4 kShape{2, 3, 4, 5};

TEST(Tensor4, IsNullByDefault) {
  const Tensor4<float> none;
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.shape(), (Shape4{0, 0, 0, 0}));
  static_assert(std::is_trivially_copyable_v<Tensor4<float>>);
  static_assert(std::is_trivially_copyable_v<Tensor4<const Eigen::half>>);
}

TEST(Tensor4, OnlyGainsConst) {
  static_assert(std::is_convertible_v<Tensor4<float>, Tensor4<const float>>);
  static_assert(!std::is_convertible_v<Tensor4<const float>, Tensor4<float>>);
  static_assert(!std::is_convertible_v<Tensor4<float>, Tensor4<const double>>);
  std::vector<float> memory(static_cast<std::size_t>(kShape.size()));
  const Tensor4<float> view(memory.data(), kShape, Stride4{1, 2, 3, 4});
  const Tensor4<const float> readable = view;
  EXPECT_EQ(readable.data(), memory.data());
  EXPECT_EQ(readable.shape(), kShape);
  EXPECT_EQ(readable.stride(), (Stride4{1, 2, 3, 4}));
}

TEST(Tensor4, AddressesEveryEntryByItsStrides) {
  std::vector<int> memory(1000);
  int* const first = memory.data() + 500;
  const Stride4 stride{-100, 7, 20, 2};
  const Tensor4<int> view(first, kShape, stride);
  for_each_index(kShape, [&](Index b, Index h, Index i, Index d) {
    EXPECT_EQ(&view(b, h, i, d), first + (-100 * b + 7 * h + 20 * i + 2 * d));
  });
  EXPECT_EQ(view.batch(), 2);
  EXPECT_EQ(view.heads(), 3);
  EXPECT_EQ(view.length(), 4);
  EXPECT_EQ(view.dim(), 5);
}

TEST(Tensor4, MemoryOrdersHaveTheirNames) {
  std::vector<int> memory(static_cast<std::size_t>(kShape.size()));
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<int>(i);
  const Tensor4<int> a = bhsd(memory.data(), kShape), b = bshd(memory.data(), kShape);
  EXPECT_EQ(a.stride(), (Tensor4<int>(memory.data(), kShape).stride()));
  for_each_index(kShape, [&](Index n, Index h, Index i, Index d) {
    EXPECT_EQ(a(n, h, i, d), ((n * 3 + h) * 4 + i) * 5 + d);
    EXPECT_EQ(b(n, h, i, d), ((n * 4 + i) * 3 + h) * 5 + d);
  });
  const Tensor4<int> c = bsd(memory.data(), 2, 4, 5), d = hsd(memory.data(), 3, 4, 5);
  EXPECT_EQ(c.shape(), (Shape4{2, 1, 4, 5}));
  EXPECT_EQ(d.shape(), (Shape4{1, 3, 4, 5}));
  EXPECT_EQ(c(1, 0, 2, 3), (1 * 4 + 2) * 5 + 3);
  EXPECT_EQ(d(0, 2, 1, 4), (2 * 4 + 1) * 5 + 4);
}

TEST(Tensor4, MatrixIsAMapOfTheSameMemory) {
  for (const Layout layout : test::kAllLayouts) {
    TestTensor<float> tensor(kShape, layout);
    tensor.fill_uniform(1);
    const Tensor4<float> view = tensor.view();
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 3; ++h) {
        auto matrix = view.matrix(b, h);
        ASSERT_EQ(matrix.rows(), 4);
        ASSERT_EQ(matrix.cols(), 5);
        for (Index i = 0; i < 4; ++i) {
          for (Index d = 0; d < 5; ++d) EXPECT_EQ(&matrix(i, d), &view(b, h, i, d));
        }
      }
    }
    EXPECT_TRUE(tensor.gaps_are_untouched());
  }
  const Tensor4<const float> readable(nullptr, Shape4{1, 1, 0, 5});
  EXPECT_EQ(readable.matrix(0, 0).rows(), 0);
}

TEST(Tensor4, SlicesEachAxis) {
  TestTensor<float> tensor(kShape, Layout::mixed);
  const Tensor4<float> view = tensor.view();
  const Tensor4<float> batch = view.slice_batch(1, 1), heads = view.slice_heads(1, 2),
                       length = view.slice_length(2, 2);
  EXPECT_EQ(batch.shape(), (Shape4{1, 3, 4, 5}));
  EXPECT_EQ(heads.shape(), (Shape4{2, 2, 4, 5}));
  EXPECT_EQ(length.shape(), (Shape4{2, 3, 2, 5}));
  EXPECT_EQ(&batch(0, 2, 3, 4), &view(1, 2, 3, 4));
  EXPECT_EQ(&heads(1, 1, 3, 4), &view(1, 2, 3, 4));
  EXPECT_EQ(&length(1, 2, 1, 4), &view(1, 2, 3, 4));
  EXPECT_EQ(view.slice_length(0, 4).stride(), view.stride());

  const Tensor4<float> empty = view.slice_length(4, 0);
  EXPECT_EQ(empty.shape(), (Shape4{2, 3, 0, 5}));
  EXPECT_EQ(empty.data(), view.data()) << "no pointer is formed outside the allocation";
}

TEST(Tensor4, RefusesSlicesOutOfRange) {
  const Tensor4<float> view(nullptr, kShape);
  EXPECT_EQ(message_of<ShapeError>([&] { view.slice_length(3, 2); }),
            "Tensor4::slice_length: the range [3, 3 + 2) does not lie within tensor [2, 3, 4, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] { view.slice_heads(-1, 2); }),
            "Tensor4::slice_heads: the range [-1, -1 + 2) does not lie within tensor [2, 3, 4, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] { view.slice_batch(0, -1); }),
            "Tensor4::slice_batch: the range [0, 0 + -1) does not lie within tensor [2, 3, 4, 5]");
  const Index far = (std::numeric_limits<Index>::max)();
  EXPECT_THROW(view.slice_batch(far, 1), ShapeError);
  EXPECT_THROW(view.slice_batch(1, far), ShapeError);
  EXPECT_THROW(view.slice_batch(far, far), ShapeError);
  EXPECT_THROW(view.slice_batch(3, 0), ShapeError);
}

TEST(View, SeesEigenMatricesOfAnyStorageOrder) {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> row_major(4, 6);
  Eigen::MatrixXd column_major(4, 6);
  Eigen::ArrayXXf array(4, 6);
  const auto expect_matrix = [](auto& matrix) {
    const auto one = view(matrix);
    ASSERT_EQ(one.shape(), (Shape4{1, 1, 4, 6}));
    const auto three = view(matrix, 3);
    ASSERT_EQ(three.shape(), (Shape4{1, 3, 4, 2}));
    for (Index i = 0; i < 4; ++i) {
      for (Index c = 0; c < 6; ++c) {
        EXPECT_EQ(&one(0, 0, i, c), &matrix.coeffRef(i, c));
        EXPECT_EQ(&three(0, c / 2, i, c % 2), &matrix.coeffRef(i, c));
      }
    }
  };
  expect_matrix(row_major);
  expect_matrix(column_major);
  expect_matrix(array);
}

TEST(View, SeesMapsRefsAndBlocks) {
  std::vector<float> memory(200);
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  Eigen::Map<Eigen::MatrixXf, 0, Strides> map(memory.data(), 3, 4, Strides(17, 2));
  const auto mapped = view(map);
  EXPECT_EQ(&mapped(0, 0, 2, 3), &map(2, 3));
  EXPECT_EQ(mapped.shape(), (Shape4{1, 1, 3, 4}));

  // Maps, refs and blocks are views themselves: temporary ones compile.
  Eigen::MatrixXf matrix = Eigen::MatrixXf::Random(6, 8);
  const auto block = view(matrix.block(1, 2, 3, 4));
  EXPECT_EQ(&block(0, 0, 2, 3), &matrix(3, 5));
  const auto columns = view(matrix.middleCols(2, 4), 2);
  EXPECT_EQ(&columns(0, 1, 5, 1), &matrix(5, 5));
  const auto transposed = view(matrix.transpose());
  EXPECT_EQ(transposed.shape(), (Shape4{1, 1, 8, 6}));
  EXPECT_EQ(&transposed(0, 0, 7, 4), &matrix(4, 7));
  Eigen::Ref<Eigen::MatrixXf> ref = matrix;
  EXPECT_EQ(&view(ref)(0, 0, 3, 3), &matrix(3, 3));
  const auto row = view(matrix.row(2));
  EXPECT_EQ(row.shape(), (Shape4{1, 1, 1, 8}));
  EXPECT_EQ(&row(0, 0, 0, 5), &matrix(2, 5));
}

TEST(View, KeepsConst) {
  Eigen::MatrixXf matrix(2, 2);
  const Eigen::MatrixXf& readable = matrix;
  static_assert(std::is_same_v<decltype(view(matrix)), Tensor4<float>>);
  static_assert(std::is_same_v<decltype(view(readable)), Tensor4<const float>>);
  static_assert(std::is_same_v<decltype(view(readable.block(0, 0, 1, 1))), Tensor4<const float>>);
  static_assert(std::is_same_v<decltype(view(Eigen::Map<const Eigen::MatrixXf>(nullptr, 0, 0))),
                               Tensor4<const float>>);
}

TEST(View, NumHeadsMustDivideTheColumns) {
  Eigen::MatrixXf matrix(2, 6);
  EXPECT_EQ(message_of<ShapeError>([&] { view(matrix, 4); }),
            "view: num_heads 4 does not divide the columns of the matrix (2 x 6)");
  EXPECT_EQ(message_of<ShapeError>([&] { view(matrix, 0); }),
            "view: num_heads 0 does not divide the columns of the matrix (2 x 6)");
  EXPECT_THROW(view(matrix, -2), ShapeError);
}

TEST(Tensor4Buffer, IsZeroAndAlignedAndOwns) {
  Tensor4Buffer<Eigen::half> buffer(kShape);
  EXPECT_EQ(buffer.shape(), kShape);
  EXPECT_EQ(buffer.size(), 120);
  EXPECT_FALSE(buffer.empty());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  for_each_index(kShape, [&](Index b, Index h, Index i, Index d) {
    EXPECT_TRUE(test::same_bits(buffer(b, h, i, d), Eigen::half(0.0f)));
  });
  buffer(1, 2, 3, 4) = Eigen::half(7.0f);
  EXPECT_EQ(buffer.data() + 119, &buffer(1, 2, 3, 4));
  EXPECT_EQ(static_cast<float>(std::as_const(buffer).view()(1, 2, 3, 4)), 7.0f);
  static_assert(std::is_same_v<decltype(std::as_const(buffer).view()), Tensor4<const Eigen::half>>);
}

TEST(Tensor4Buffer, CopiesAndMoves) {
  Tensor4Buffer<int> a(kShape);
  a(0, 0, 0, 1) = 5;
  Tensor4Buffer<int> b = a;
  EXPECT_NE(a.data(), b.data());
  EXPECT_EQ(b(0, 0, 0, 1), 5);
  b(0, 0, 0, 1) = 6;
  EXPECT_EQ(a(0, 0, 0, 1), 5);

  const int* const memory = a.data();
  Tensor4Buffer<int> c = std::move(a);
  EXPECT_EQ(c.data(), memory);
  c = b;
  EXPECT_EQ(c(0, 0, 0, 1), 6);
  Tensor4Buffer<int>& same = c;
  c = same;  // to itself
  EXPECT_EQ(c(0, 0, 0, 1), 6);
  c = Tensor4Buffer<int>();
  EXPECT_TRUE(c.empty());
  EXPECT_EQ(c.data(), nullptr);
}

TEST(Tensor4Buffer, AcceptsEmptyAndRefusesImpossibleShapes) {
  Tensor4Buffer<float> empty({2, 0, 4, 5});
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.view().shape(), (Shape4{2, 0, 4, 5}));
  const Index large = Index{1} << 31;
  const std::vector<std::pair<Shape4, std::string>> impossible = {
      {{2, -1, 4, 5}, "[2, -1, 4, 5]"},
      {{large, large, 2, 1}, "[2147483648, 2147483648, 2, 1]"},      // 2^63 elements
      {{large, large / 2, 1, 2}, "[2147483648, 1073741824, 1, 2]"},  // 2^62 of 4 bytes
      {{0, large, large, -1}, "[0, 2147483648, 2147483648, -1]"},
  };
  for (const auto& [shape, text] : impossible) {
    EXPECT_EQ(message_of<ShapeError>([s = shape] { Tensor4Buffer<float>{s}; }),
              "Tensor4Buffer: negative or too large: shape " + text);
  }
}

TEST(Shape, DescribesItself) {
  EXPECT_EQ(detail::describe("q", kShape), "q [2, 3, 4, 5]");
  EXPECT_EQ(kShape.size(), 120);
  EXPECT_NE(kShape, (Shape4{2, 3, 5, 4}));
  EXPECT_NE((Stride4{1, 2, 3, 4}), (Stride4{1, 2, 3, 5}));
}

}  // namespace
}  // namespace attn

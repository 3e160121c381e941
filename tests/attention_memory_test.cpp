// Which memory a call reads and writes: nothing outside its tensors, at any distance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attn/attention.hpp"
#include "support/element_types.hpp"
#include "support/guard_pages.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace attn {
namespace {

using test::GuardAt;
using test::GuardedMemory;
using test::Inputs;
using test::Sizes;
using test::TestTensor;

template <class T>
class MemoryOf : public ::testing::Test {};
TYPED_TEST_SUITE(MemoryOf, test::ElementTypes, test::TypeNames);

// Every tensor ends (or begins) at a forbidden page, the masks, the arrays and the workspace too.
TYPED_TEST(MemoryOf, NothingIsTouchedOutsideTheTensors) {
  using T = TypeParam;
  using A = AccumulationType<T>;
  const Sizes shapes[] = {{1, 2, 1, 1, 1, 1, 1, 1},      {1, 2, 1, 2, 3, 33, 7, 9},
                          {2, 2, 2, 1, 8, 38, 64, 96},   {1, 2, 2, 2, 16, 70, 65, 3},
                          {1, 1, 1, 1, 50, 129, 17, 33}, {1, 1, 1, 1, 2, 4099, 3, 5}};
  for (const GuardAt guard : {GuardAt::end, GuardAt::begin}) {
    for (const InstructionSet set : test::instruction_sets()) {
      for (const Sizes& sizes : shapes) {
        SCOPED_TRACE(sizes);
        SCOPED_TRACE(name_of(set));
        const Inputs<T> in(sizes, 101);
        const auto copy_of = [&](const TestTensor<T>& from, GuardedMemory<T>& memory) {
          const Tensor4<T> view(memory.data(), from.shape());
          test::for_each_index(from.shape(), [&](Index b, Index h, Index i, Index d) {
            view(b, h, i, d) = from(b, h, i, d);
          });
          return view;
        };
        GuardedMemory<T> q_memory(sizes.q().size(), guard), k_memory(sizes.k().size(), guard),
            v_memory(sizes.v().size(), guard), out_memory(sizes.out().size(), guard),
            bias_memory(sizes.scores().size(), guard);
        GuardedMemory<A> weights_memory(sizes.scores().size(), guard),
            lse_memory(sizes.rows().size(), guard);
        GuardedMemory<bool> mask_memory(sizes.key_length, guard);
        GuardedMemory<double> sinks_memory(sizes.query_heads, guard);
        const Tensor4<T> q = copy_of(in.q, q_memory), k = copy_of(in.k, k_memory),
                         v = copy_of(in.v, v_memory);
        const Tensor4<T> out(out_memory.data(), sizes.out()),
            bias(bias_memory.data(), sizes.scores());
        const Tensor4<bool> mask(mask_memory.data(), {1, 1, 1, sizes.key_length});
        for (Index j = 0; j < sizes.key_length; ++j) mask(0, 0, 0, j) = j % 7 != 3;
        for (Index h = 0; h < sizes.query_heads; ++h) sinks_memory.data()[h] = 0.5;
        const AttentionOutputs<A> extra{Tensor4<A>(weights_memory.data(), sizes.scores()),
                                        Tensor4<A>(lse_memory.data(), sizes.rows())};
        AttentionOptions options;
        options.instruction_set = set;
        options.sinks = Span<const double>(sinks_memory.data(), sizes.query_heads);
        const auto masks = keep_where(mask) & add_bias(bias) & causal_bottom_right();
        const std::size_t bytes = attention_workspace_bytes(q, k, v, masks, options);
        GuardedMemory<char> workspace(static_cast<Index>(bytes), guard);
        options.workspace = {workspace.data(), bytes};
        scaled_dot_product_attention(q, k, v, out, masks, options, extra);

        TestTensor<T> expected(sizes.out());
        scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), expected.view(), masks,
                                     options);
        EXPECT_TRUE(test::same_bits(out, expected.view()));
      }
    }
  }
}

/// Address space without memory: only the pages that are touched exist.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : size_(bytes) {
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() {
    if (is_there()) ::munmap(memory_, size_);
  }
  bool is_there() const { return memory_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_;
  std::size_t size_;
};

TEST(FarMemory, MaskRowsBeyond32Bits) {
  const Index stride = (Index{1} << 30) + 1;
  const SparseMemory memory(static_cast<std::size_t>(2 * stride + 8));
  if (!memory.is_there()) GTEST_SKIP() << "the system offers no 2 GiB of address space";
  const Tensor4<std::uint8_t> mask(memory.as<std::uint8_t>(), {1, 1, 3, 8},
                                   Stride4{0, 0, stride, 1});
  mask(0, 0, 0, 1) = mask(0, 0, 1, 1) = mask(0, 0, 2, 5) = 1;
  Tensor4Buffer<float> q({1, 1, 3, 1}), k({1, 1, 8, 1}), v({1, 1, 8, 1}), out({1, 1, 3, 1});
  for (Index j = 0; j < 8; ++j) v(0, 0, j, 0) = std::exp2(static_cast<float>(j));
  scaled_dot_product_attention(q, k, v, out, keep_where(mask));
  EXPECT_EQ(out(0, 0, 0, 0), 2);
  EXPECT_EQ(out(0, 0, 1, 0), 2);
  EXPECT_EQ(out(0, 0, 2, 0), 32);
}

TEST(FarMemory, TensorsBeyond32Bits) {
  // Element offsets beyond 2^31, in every tensor and on every axis in turn; 2^35 bytes of
  // addresses.
  const Sizes sizes{2, 2, 2, 2, 17, 2, 2, 2};
  const Index far = Index{1} << 31, plane = 64;
  const SparseMemory memory(std::size_t{1} << 36);
  if (!memory.is_there()) GTEST_SKIP() << "the system offers no 64 GiB of address space";
  const Inputs<float> in(sizes, 102);
  TestTensor<float> expected(sizes.out());
  scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), expected.view());
  for (int axis = 0; axis < 3; ++axis) {
    // The inputs lie side by side on each far page; out lies behind them all.
    float* next = memory.as<float>();
    const auto far_view = [&](const Shape4& shape) {
      Stride4 stride{shape.heads * shape.length * shape.dim, shape.length * shape.dim, shape.dim,
                     1};
      if (axis == 0) stride.batch = far + plane;
      if (axis == 1) stride.heads = far + plane;
      if (axis == 2) stride.dim = far + plane;
      const Tensor4<float> view(next, shape, stride);
      next += 2 * shape.size();
      return view;
    };
    const auto far_copy = [&](const TestTensor<float>& from) {
      const Tensor4<float> view = far_view(from.shape());
      test::for_each_index(from.shape(), [&](Index b, Index h, Index i, Index d) {
        view(b, h, i, d) = from(b, h, i, d);
      });
      return view;
    };
    const Tensor4<float> q = far_copy(in.q), k = far_copy(in.k), v = far_copy(in.v);
    next = memory.as<float>() + 3 * far;
    const Tensor4<float> out = far_view(sizes.out());
    scaled_dot_product_attention(q, k, v, out);
    EXPECT_TRUE(test::same_bits(out, expected.view()));
  }
}

TEST(FarMemory, SequencesBeyond16Bits) {
  for (const Index length : {65535, 65536, 65537}) {
    const Sizes sizes{1, 1, 1, 1, length, length, 1, 1};
    Inputs<float> in(sizes);
    in.q.fill_value(0);
    in.v.fill([](Index, Index, Index j, Index) { return static_cast<float>(j % 7); });
    Tensor4Buffer<float> out(sizes.out());
    scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), out,
                                 causal() & sliding_window(3, 0));
    for (Index i = length - 8; i < length; ++i) {
      float sum = 0;
      for (Index j = i - 3; j <= i; ++j) sum += static_cast<float>(j % 7);
      EXPECT_EQ(out(0, 0, i, 0), sum / 4);
    }
  }
}

TEST(FarMemory, BatchesBeyond16Bits) {
  const Sizes sizes{70000, 2, 1, 2, 2, 2, 3, 1};
  const Sizes one{1, 2, 1, 2, 2, 2, 3, 1};
  const Inputs<float> in(one, 103);
  const auto repeat = [&](Tensor4<const float> view) {
    Shape4 shape = view.shape();
    shape.batch = sizes.batch;
    Stride4 stride = view.stride();
    stride.batch = 0;
    return Tensor4<const float>(view.data(), shape, stride);
  };
  Tensor4Buffer<float> out(sizes.out());
  scaled_dot_product_attention(repeat(in.q.view()), repeat(in.k.view()), repeat(in.v.view()), out);
  Index different = 0;
  for (Index b = 1; b < sizes.batch; ++b) {
    for (Index h = 0; h < 2; ++h) {
      for (Index i = 0; i < 2; ++i) {
        different += !test::same_bits(out(b, h, i, 0), out(0, h, i, 0));
      }
    }
  }
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace attn

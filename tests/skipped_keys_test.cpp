// What a mask of the user's can tell before anything is read: key tiles that all rows drop are not
// fetched, not even converted.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/attention.hpp"
#include "support/guard_pages.hpp"
#include "support/values.hpp"

namespace attn {
namespace {

/// Keeps the keys outside [begin, end).
class WithoutKeys : public Mask {
 public:
  WithoutKeys(Index begin, Index end) : dropped_{begin, end} {}

  bool allows(const ScorePosition& at) const {
    return at.key < dropped_.begin || at.key >= dropped_.end;
  }
  Cover cover(const RowBlock&, KeyRange keys) const {
    if ((keys & dropped_).empty()) return Cover::all;
    return keys.begin >= dropped_.begin && keys.end <= dropped_.end ? Cover::none : Cover::partial;
  }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    tile.for_each([&](A& score, const ScorePosition& at) {
      if (!allows(at)) score = -std::numeric_limits<A>::infinity();
    });
  }

 private:
  KeyRange dropped_;
};

/// Keys 1024 .. 2047 of 3072 lie in memory that must not be read. Tiles begin at multiples of 1024
/// in every form, or of what divides it.
template <class T>
void expect_not_read(Index queries) {
  const Index dim = 4, keys = 3072;
  const Index part = 1024 * dim;
  test::UnreadableMiddle<T> k(part);
  for (Index i = 0; i < keys * dim; ++i) {
    if (i >= part && i < 2 * part) continue;
    k.data()[i] = T(static_cast<float>(test::uniform(5, static_cast<std::uint64_t>(i))));
  }
  std::vector<T> q(static_cast<std::size_t>(queries * dim), T(0.5f)), out(q.size());
  const Tensor4<const T> k_view(k.data(), Shape4{1, 1, keys, dim});
  scaled_dot_product_attention(Tensor4<const T>(q.data(), Shape4{1, 1, queries, dim}), k_view,
                               k_view, Tensor4<T>(out.data(), Shape4{1, 1, queries, dim}),
                               WithoutKeys(1024, 2048));
  for (const T& x : out) EXPECT_LT(std::abs(static_cast<float>(x)), 1.0f);
}

TEST(SkippedKeys, AreNotRead) {
  for (const Index queries : {1, 9, 50, 500}) {
    expect_not_read<float>(queries);
    expect_not_read<double>(queries);
    expect_not_read<Eigen::half>(queries);
    expect_not_read<Eigen::bfloat16>(queries);
  }
}

}  // namespace
}  // namespace attn

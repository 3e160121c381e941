// What masks can tell before anything is read: key tiles that all rows drop are not fetched, not
// even converted, and of the others no more scores are computed than rows see.
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/attention.hpp"
#include "support/guard_pages.hpp"
#include "support/throws.hpp"
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
template <class T, class M>
void expect_not_read(Index queries, const M& mask, Index third = 1024) {
  const Index dim = 4, keys = 3 * third;
  const Index part = third * dim;
  test::UnreadableMiddle<T> k(part);
  for (Index i = 0; i < keys * dim; ++i) {
    if (i >= part && i < 2 * part) continue;
    k.data()[i] = T(static_cast<float>(test::uniform(5, static_cast<std::uint64_t>(i))));
  }
  std::vector<T> q(static_cast<std::size_t>(queries * dim), T(0.5f)), out(q.size());
  const Tensor4<const T> k_view(k.data(), Shape4{1, 1, keys, dim});
  scaled_dot_product_attention(Tensor4<const T>(q.data(), Shape4{1, 1, queries, dim}), k_view,
                               k_view, Tensor4<T>(out.data(), Shape4{1, 1, queries, dim}), mask);
  for (const T& x : out) EXPECT_LT(std::abs(static_cast<float>(x)), 1.0f);
}

TEST(SkippedKeys, AreNotRead) {
  for (const Index queries : {1, 9, 50, 500}) {
    const WithoutKeys mask(1024, 2048);
    expect_not_read<float>(queries, mask);
    expect_not_read<double>(queries, mask);
    expect_not_read<Eigen::half>(queries, mask);
    expect_not_read<Eigen::bfloat16>(queries, mask);
  }
}

TEST(SkippedKeys, BetweenTheSidesOfAUnionAreNotRead) {
  for (const Index queries : {1, 9, 50, 500}) {
    const auto mask = first_keys(4) | sliding_window(500, 0);
    expect_not_read<float>(queries, mask);
    expect_not_read<double>(queries, mask);
    expect_not_read<Eigen::half>(queries, mask);
    expect_not_read<Eigen::bfloat16>(queries, AnyMask(mask));
  }
  expect_not_read<Eigen::half>(70, keys_between(900, 1024) | sliding_window(500, 0));
  expect_not_read<float>(3, (first_keys(4) | no_mask()) & sliding_window(900, 0));
}

TEST(SkippedKeys, MayBeAHundredThousand) {
  for (const Index queries : {1, 60}) {
    expect_not_read<Eigen::half>(queries, first_keys(4) | sliding_window(100, 0), 102400);
  }
}

/// Keeps all, and counts the scores that are computed.
struct CountScores : Mask {
  Index* count;

  explicit CountScores(Index& total) : count(&total) {}
  bool modifies() const { return true; }
  template <class A>
  void modify(const ScoreTile<A>& tile) const {
    *count += tile.rows.count * tile.keys.size();
  }
};

template <class M>
Index scores_of(Index queries, Index keys, const M& mask) {
  Tensor4Buffer<float> q({1, 1, queries, 4}), k({1, 1, keys, 4}), out(q.shape());
  Index count = 0;
  scaled_dot_product_attention(q, k, k, out, mask & CountScores(count));
  return count;
}

TEST(SkippedKeys, OfAUnionLeaveItsSidesAlone) {
  const Index n = 3000;
  // As many as of both sides alone, in key tiles that only one side sees.
  const Index window = scores_of(n, n, sliding_window(63, 0));
  EXPECT_LE(scores_of(n, n, first_keys(4) | sliding_window(63, 0)), window + 4 * n + 128 * 256);
  EXPECT_GE(scores_of(n, n, first_keys(4) | sliding_window(63, 0)), window + 4 * (n - 256));
  EXPECT_EQ(scores_of(n, n, keys_between(2000, 2100)), 100 * n);
  EXPECT_EQ(scores_of(1, n, first_keys(7) | keys_between(2000, 2100)), 107);
  const Index causal_scores = scores_of(n, n, causal());
  EXPECT_LE(scores_of(n, n, causal() | first_keys(500)), causal_scores + 500 * 500);
}

TEST(SkippedKeys, OfOtherSegments) {
  const Index n = 900;
  Tensor4Buffer<std::int32_t> documents({1, 1, n, 1}), images(documents.shape());
  for (Index i = 0; i < n; ++i) {
    documents(0, 0, i, 0) = static_cast<std::int32_t>(i / 300);
    images(0, 0, i, 0) = i >= 500 && i < 600 ? 7 : -1;
  }
  // A tile of rows has those of two documents at most.
  EXPECT_GE(scores_of(n, n, same_segment(documents)), 3 * 300 * 300);
  EXPECT_LE(scores_of(n, n, same_segment(documents)), 3 * 300 * 300 + 2 * 64 * 600);
  EXPECT_GE(scores_of(n, n, same_segment(images)), 100 * 100);
  EXPECT_LE(scores_of(n, n, same_segment(images)), (100 + 2 * 64) * 100);
  const Index causal_scores = scores_of(n, n, causal());
  EXPECT_LE(scores_of(n, n, causal() | same_segment(images)), causal_scores + 164 * 164);
}

/// A mask as users write it, of public names alone: queries see the keys of their chunk.
class SameChunk : public Mask {
 public:
  explicit SameChunk(Index size) : size_(size) {}

  bool allows(const ScorePosition& at) const { return at.key / size_ == at.query_position / size_; }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    const Index last = (rows.position_end() - 1) / size_ * size_;
    return KeyRange{0, key_length} & KeyRange{rows.position_begin() / size_ * size_, last + size_};
  }
  Cover cover(const RowBlock&, KeyRange) const { return Cover::partial; }
  template <class A>
  void apply(const ScoreTile<A>& tile) const {
    tile.for_each([&](A& score, const ScorePosition& at) {
      if (!allows(at)) score = -std::numeric_limits<A>::infinity();
    });
  }
  void declare(MaskChecker& checker) const { checker.use_position("SameChunk"); }

 private:
  Index size_;
};

TEST(SkippedKeys, OfAMaskOfTheUsers) {
  const Index n = 960;
  EXPECT_GE(scores_of(n, n, SameChunk(96)), 96 * n);
  EXPECT_LE(scores_of(n, n, SameChunk(96)), (96 + 64) * n);
  EXPECT_EQ(scores_of(1, n, SameChunk(96)), 96);
  EXPECT_EQ(scores_of(1, n, SameChunk(96) | first_keys(2)), 98);
}

// It says that it reads positions: where they are open, the call asks for them.
TEST(SkippedKeys, OfAMaskThatReadsPositions) {
  EXPECT_EQ(test::message_of<ShapeError>([] { scores_of(2, 8, SameChunk(4) & key_lengths(6)); }),
            "scaled_dot_product_attention: SameChunk with key_lengths and a query length that is "
            "not the key length: say where the queries stand, as causal_from(offset) or "
            "options.query_offset (length - Sq: at the end of the valid keys); got q [1, 1, 2, 4], "
            "k [1, 1, 8, 4], v [1, 1, 8, 4], out [1, 1, 2, 4]");
}

// A lambda alone sees every key; a mask beside it bounds it.
TEST(SkippedKeys, OfAMaskBesideALambda) {
  const Index n = 1000;
  const auto odd = keep_if([](ScorePosition at) { return at.key % 2 == 1; });
  EXPECT_EQ(scores_of(n, n, odd), n * n);
  EXPECT_EQ(scores_of(n, n, odd & sliding_window(20, 0)), scores_of(n, n, sliding_window(20, 0)));
  EXPECT_EQ(scores_of(1, n, first_keys(3) | (odd & keys_between(700, 720))), 23);
}

}  // namespace
}  // namespace attn

#include "attn/caches/paged.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "attn/executor.hpp"
#include "attn/kv_cache.hpp"
#include "support/cached_tokens.hpp"
#include "support/tensors.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {
namespace {

constexpr Index kKeyDim = 7, kValueDim = 5, kHeads = 2, kQueryHeads = 4;

TestTensor<float> queries(Index batch, Index length) {
  TestTensor<float> q({batch, kQueryHeads, length, kKeyDim});
  q.fill_uniform(3, 3);
  return q;
}

/// `count` tokens for one sequence, of another content for each seed.
struct Tokens {
  TestTensor<float> k, v;

  Tokens(Index count, std::uint64_t seed)
      : k({1, kHeads, count, kKeyDim}), v({1, kHeads, count, kValueDim}) {
    k.fill_uniform(2 * seed);
    v.fill_uniform(2 * seed + 1);
  }
};

/// A paged cache and, for each sequence, a contiguous one that is told the same.
class Twins {
 public:
  Twins(Index num_pages, Index page_length, Index batch)
      : paged(num_pages, page_length, batch, kHeads, kKeyDim, kValueDim),
        plain(batch, kHeads, 200, kKeyDim, kValueDim) {}

  void append_to(Index b, const Tokens& tokens) {
    paged.append_to(b, tokens.k.view(), tokens.v.view());
    plain.append_to(b, tokens.k.view(), tokens.v.view());
  }
  void share_prefix(Index from, Index to, Index length) {
    paged.share_prefix(from, to, length);
    plain.reset(to);
    if (length == 0) return;
    const auto part = [&](Tensor4<const float> tokens) {
      TestTensor<float> copy({1, kHeads, length, tokens.dim()});
      copy.fill([&](Index, Index h, Index i, Index d) { return tokens(from, h, i, d); });
      return copy;
    };
    plain.append_to(to, part(plain.keys()).view(), part(plain.values()).view());
  }
  void truncate(PerBatch length) {
    paged.truncate(length);
    plain.truncate(length);
  }

  /// The same tokens, the same bits of attention, and no page lost or used twice without leave.
  void expect_alike() const {
    for (Index b = 0; b < paged.batch(); ++b) {
      ASSERT_EQ(paged.length(b), plain.length(b));
      for (Index t = 0; t < paged.length(b); ++t) {
        const Index page = paged.pages(b)[t / paged.page_length()], row = t % paged.page_length();
        for (Index h = 0; h < kHeads; ++h) {
          for (Index d = 0; d < kKeyDim; ++d) {
            ASSERT_EQ(paged.keys()(page, h, row, d), plain.keys()(b, h, t, d)) << b << ", " << t;
          }
          for (Index d = 0; d < kValueDim; ++d) {
            ASSERT_EQ(paged.values()(page, h, row, d), plain.values()(b, h, t, d))
                << b << ", " << t;
          }
        }
      }
    }
    std::set<Index> used;
    for (Index b = 0; b < paged.batch(); ++b) {
      used.insert(paged.pages(b).begin(), paged.pages(b).end());
    }
    EXPECT_EQ(static_cast<Index>(used.size()), paged.num_pages() - paged.num_free_pages());
    for (const Index query_length : {1, 5}) {
      const auto q = queries(paged.batch(), query_length);
      const auto a =
          scaled_dot_product_attention(q.view(), paged, causal_bottom_right(), {}, Want::weights);
      const auto b =
          scaled_dot_product_attention(q.view(), plain, causal_bottom_right(), {}, Want::weights);
      EXPECT_TRUE(same_bits(a.output.view(), b.output.view()));
      EXPECT_TRUE(same_bits(a.weights.view(), b.weights.view()));
    }
  }

  PagedKeyValueCache<float> paged;
  KeyValueCache<float> plain;
};

TEST(PagedKeyValueCache, HasTheBitsOfTensors) {
  const CachedTokens<float> tokens({131, 0, 40, 128}, kHeads, kKeyDim, kValueDim);
  for (const Index page_length : {1, 7, 16, 128, 300}) {
    SCOPED_TRACE(page_length);
    PagedKeyValueCache<float> cache(400, page_length, 4, kHeads, kKeyDim, kValueDim);
    tokens.feed(cache, 30);
    for (const Index query_length : {1, 3, 20}) {
      const auto q = queries(4, query_length);
      for (const AnyMask& mask : {AnyMask(causal()), AnyMask(causal() & sliding_window(9, 0)),
                                  AnyMask(alibi() & causal())}) {
        expect_bits_of_tensors<float>(cache, tokens, q, mask, mask);
      }
    }
  }
}

TEST(PagedKeyValueCache, SplitsLongKeysAsTensorsDo) {
  const CachedTokens<float> tokens({4100, 9000}, kHeads, kKeyDim, kValueDim);
  PagedKeyValueCache<float> cache(300, 64, 2, kHeads, kKeyDim, kValueDim);
  tokens.feed(cache, 4500);
  expect_bits_of_tensors<float>(cache, tokens, queries(2, 1), causal(), causal());
}

TEST(PagedKeyValueCache, TakesPagesWhenNeededAndGivesThemBack) {
  Twins twins(8, 4, 2);
  twins.append_to(0, Tokens(5, 1));
  EXPECT_EQ(twins.paged.num_free_pages(), 6);
  twins.append_to(0, Tokens(3, 2));  // fills the second page
  EXPECT_EQ(twins.paged.num_free_pages(), 6);
  twins.append_to(1, Tokens(1, 3));
  EXPECT_EQ(twins.paged.num_free_pages(), 5);
  twins.expect_alike();
  const Index last = twins.paged.pages(0)[1];
  const std::vector<Index> lengths = {4, 1};
  twins.truncate(lengths);
  EXPECT_EQ(twins.paged.num_free_pages(), 6);
  twins.append_to(1, Tokens(4, 4));
  EXPECT_EQ(twins.paged.pages(1)[1], last);  // used again
  twins.expect_alike();
  twins.paged.reset(0);
  EXPECT_EQ(twins.paged.num_free_pages(), 6);
  twins.paged.reset();
  EXPECT_EQ(twins.paged.num_free_pages(), 8);
}

TEST(PagedKeyValueCache, SharedPagesAreCopiedWhenWritten) {
  Twins twins(16, 4, 4);
  twins.append_to(0, Tokens(10, 1));
  twins.share_prefix(0, 1, 10);
  twins.share_prefix(0, 2, 8);  // whole pages: nothing will be copied
  twins.share_prefix(1, 3, 9);
  EXPECT_EQ(twins.paged.num_free_pages(), 13);
  twins.expect_alike();

  twins.append_to(2, Tokens(1, 2));  // a new page
  EXPECT_EQ(twins.paged.num_free_pages(), 12);
  EXPECT_EQ(twins.paged.pages(2)[1], twins.paged.pages(0)[1]);
  twins.append_to(1, Tokens(1, 3));  // a copy
  EXPECT_EQ(twins.paged.num_free_pages(), 11);
  EXPECT_NE(twins.paged.pages(1)[2], twins.paged.pages(0)[2]);
  twins.expect_alike();
  twins.append_to(3, Tokens(2, 4));  // another copy, into a shorter prefix
  EXPECT_EQ(twins.paged.num_free_pages(), 10);
  twins.append_to(0, Tokens(2, 5));  // its own by now
  EXPECT_EQ(twins.paged.num_free_pages(), 10);
  twins.expect_alike();

  twins.truncate(5);
  twins.expect_alike();
  // All four share the second page of one token.
  EXPECT_EQ(twins.paged.num_free_pages(), 14);
  twins.share_prefix(0, 1, 0);
  twins.expect_alike();
}

// The last of those who append to a shared page keeps it, also within one append.
TEST(PagedKeyValueCache, AppendNeedsExactlyTheCopiesItMakes) {
  for (const Index others : {1, 2, 3}) {
    for (const bool all_append : {false, true}) {
      const Index batch = others + 1, copies = all_append ? others : 1;
      PagedKeyValueCache<float> enough(1 + copies, 4, batch, 1, 1), too_few(copies, 4, batch, 1, 1);
      const std::vector<Index> counts(static_cast<std::size_t>(batch), 1);
      std::vector<Index> some = counts;
      if (!all_append) std::fill(some.begin() + 1, some.end(), 0);
      TestTensor<float> prefix({1, 1, 2, 1}), token({batch, 1, 1, 1});
      prefix.fill_value(1);
      token.fill([](Index b, Index, Index, Index) { return 10 + b; });
      for (PagedKeyValueCache<float>* cache : {&enough, &too_few}) {
        cache->append_to(0, prefix.view(), prefix.view());
        for (Index b = 1; b < batch; ++b) cache->share_prefix(0, b, 2);
      }
      enough.append(token.view(), token.view(), some);
      EXPECT_EQ(enough.num_free_pages(), 0);
      for (Index b = 0; b < batch; ++b) {
        const bool appended = all_append || b == 0;
        ASSERT_EQ(enough.length(b), appended ? 3 : 2);
        EXPECT_EQ(enough.keys()(enough.pages(b)[0], 0, 1, 0), 1);
        if (appended) {
          EXPECT_EQ(enough.keys()(enough.pages(b)[0], 0, 2, 0), 10 + b);
        }
      }
      EXPECT_EQ(message_of<ShapeError>([&] { too_few.append(token.view(), token.view(), some); }),
                "PagedKeyValueCache::append: append past capacity: " + std::to_string(copies) +
                    " more pages are needed, and " + std::to_string(copies - 1) + " of " +
                    std::to_string(copies) + " are free; got cached keys [" +
                    std::to_string(copies) + ", 1, 4, 1], cached values [" +
                    std::to_string(copies) + ", 1, 4, 1], k [" + std::to_string(batch) +
                    ", 1, 1, 1], v [" + std::to_string(batch) + ", 1, 1, 1]");
      EXPECT_EQ(too_few.num_free_pages(), copies - 1);
      for (Index b = 0; b < batch; ++b) {
        EXPECT_EQ(too_few.length(b), 2);
        EXPECT_EQ(too_few.pages(b)[0], too_few.pages(0)[0]);
      }
    }
  }
}

TEST(PagedKeyValueCache, RefusesWhatDoesNotFitAndChangesNothing) {
  Twins twins(4, 4, 2);
  twins.append_to(0, Tokens(9, 1));
  twins.append_to(1, Tokens(2, 2));
  EXPECT_EQ(twins.paged.num_free_pages(), 0);
  const Tokens more(3, 3);
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.append_to(1, more.k.view(), more.v.view()); }),
            "PagedKeyValueCache::append_to: append past capacity: 1 more pages are needed, and 0 "
            "of 4 are free; got cached keys [4, 2, 4, 7], cached values [4, 2, 4, 5], "
            "k [1, 2, 3, 7], v [1, 2, 3, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.append(more.k.view(), more.v.view()); }),
            "PagedKeyValueCache::append: k and v must have one batch a sequence, 2; got cached "
            "keys [4, 2, 4, 7], cached values [4, 2, 4, 5], k [1, 2, 3, 7], v [1, 2, 3, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.truncate(3); }),
            "PagedKeyValueCache::truncate: sequence 1 holds 2 tokens and cannot be cut to 3");
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.share_prefix(1, 0, 3); }),
            "PagedKeyValueCache::share_prefix: sequence 0 cannot become the first 3 of the 2 "
            "tokens of sequence 1: that must be another sequence, and long enough");
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.share_prefix(0, 0, 1); }),
            "PagedKeyValueCache::share_prefix: sequence 0 cannot become the first 1 of the 9 "
            "tokens of sequence 0: that must be another sequence, and long enough");
  EXPECT_EQ(message_of<ShapeError>([&] { twins.paged.share_prefix(0, 2, 1); }),
            "PagedKeyValueCache::share_prefix: there is no sequence 2 among the 2 of the cache");
  twins.expect_alike();
  twins.append_to(1, Tokens(2, 4));  // what is left of its page
  twins.expect_alike();
}

TEST(PagedKeyValueCache, RefusesPoolsThatAreNone) {
  EXPECT_EQ(message_of<ShapeError>([] { PagedKeyValueCache<float>(4, 0, 1, 1, 2); }),
            "PagedKeyValueCache: takes a page_length of 1 or more, and no window; got batch 1, "
            "num_kv_heads 1, head_dim 2, value_dim 2, num_pages 4, page_length 0");
  EXPECT_EQ(message_of<ShapeError>([] { PagedKeyValueCache<float>(4, 2, -1, 1, 2); }),
            "PagedKeyValueCache: a size must not be negative; got batch -1, num_kv_heads 1, "
            "head_dim 2, value_dim 2, num_pages 4, page_length 2");
  EXPECT_EQ(
      message_of<ShapeError>([] { PagedKeyValueCache<float>(-4, 2, 1, 1, 2); }),
      "PagedKeyValueCache: a size must not be negative; got batch 1, num_kv_heads 1, head_dim "
      "2, value_dim 2, num_pages -4, page_length 2");
  const PagedKeyValueCache<float> none;
  EXPECT_EQ(none.num_pages(), 0);
  EXPECT_EQ(none.batch(), 0);
  PagedKeyValueCache<float> empty(0, 4, 2, 1, 2);
  TestTensor<float> q({2, 1, 1, 2});
  q.fill_value(1);
  EXPECT_EQ(scaled_dot_product_attention(q.view(), empty, no_mask()).output(1, 0, 0, 1), 0);
}

// Any history of appends, cuts, shared prefixes and refusals: what counts is what a plain cache
// holds after the same history.
TEST(PagedKeyValueCache, AnyHistoryGivesWhatAPlainCacheHolds) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    constexpr Index kSequences = 4;
    Twins twins(24, 1 + static_cast<Index>(seed % 6), kSequences);
    int refused = 0;
    for (std::uint64_t turn = 0; turn < 40; ++turn) {
      auto draw = [&, place = turn * 8](std::uint64_t bound) mutable {
        return static_cast<Index>(uniform_below(seed, place++, bound));
      };
      const Index action = draw(10), b = draw(kSequences);
      if (action < 5) {
        const Tokens tokens(1 + draw(9), seed * 1000 + turn);
        try {
          twins.paged.append_to(b, tokens.k.view(), tokens.v.view());
          twins.plain.append_to(b, tokens.k.view(), tokens.v.view());
        } catch (const ShapeError&) {
          ++refused;
        }
      } else if (action < 8) {
        const Index to = (b + 1 + draw(kSequences - 1)) % kSequences;
        twins.share_prefix(b, to, draw(static_cast<std::uint64_t>(twins.paged.length(b)) + 1));
      } else {
        std::vector<Index> lengths(twins.paged.lengths().begin(), twins.paged.lengths().end());
        Index& length = lengths[static_cast<std::size_t>(b)];
        length = draw(static_cast<std::uint64_t>(length) + 1);
        twins.truncate(lengths);
      }
    }
    twins.expect_alike();
    if (twins.paged.page_length() == 1) {
      EXPECT_GT(refused, 0);
    }
  }
}

TEST(PagedKeyValueCache, CopiesOwnTheirPages) {
  Twins twins(8, 4, 2);
  twins.append_to(0, Tokens(6, 1));
  const PagedKeyValueCache<float> copy = twins.paged;
  const auto q = queries(2, 1);
  const auto before = scaled_dot_product_attention(q.view(), copy, causal());
  twins.paged.reset();
  twins.paged.append_to(1, Tokens(8, 2).k.view(), Tokens(8, 2).v.view());
  const auto after = scaled_dot_product_attention(q.view(), copy, causal());
  EXPECT_TRUE(same_bits(after.output.view(), before.output.view()));
}

}  // namespace
}  // namespace test
}  // namespace attn

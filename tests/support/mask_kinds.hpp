// tests/support/mask_kinds.hpp - every kind of mask, with its meaning as a formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "support/formula.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// A mask, and what it means.
struct Kind {
  std::string name;
  AnyMask mask;
  Formula formula;
  bool uses_position = false;
  bool is_top_left = false;  // needs offset 0, and bottom_right needs Sk - Sq
};

/// The tensors and arrays that the masks of one call look at.
template <class Bias>
struct MaskData {
  TestTensor<bool> full, heads_and_queries;
  TestTensor<std::uint8_t> padding;
  TestTensor<Bias> bias;
  TestTensor<double> wide_bias;
  std::vector<std::int32_t> lengths;
  std::vector<Index> offsets, counts;
  std::vector<double> slopes;

  MaskData(const Sizes& s, Index offset)
      : full(s.scores(), Layout::mixed),
        heads_and_queries({1, s.query_heads, s.query_length, 1}, Layout::permuted),
        padding({s.batch, 1, 1, s.key_length}, Layout::inner_stride),
        bias(s.scores(), Layout::bshd),
        wide_bias({1, s.query_heads, 1, s.key_length}, Layout::negative) {
    const auto draw = [](std::uint64_t seed, const Shape4& shape) {
      return [seed, shape](Index b, Index h, Index i, Index j) {
        return uniform(seed, linear_index(shape, b, h, i, j));
      };
    };
    full.fill([d = draw(1, s.scores())](Index b, Index h, Index i, Index j) {
      return d(b, h, i, j) < 0.4;
    });
    heads_and_queries.fill(
        [d = draw(2, heads_and_queries.shape())](Index b, Index h, Index i, Index j) {
          return d(b, h, i, j) < -0.6;
        });
    padding.fill([d = draw(3, padding.shape())](Index b, Index h, Index i, Index j) {
      return d(b, h, i, j) < 0.5 ? 255 : 0;
    });
    bias.fill([d = draw(4, s.scores())](Index b, Index h, Index i, Index j) {
      const double x = d(b, h, i, j);
      return x > 0.8 ? -infinity<Bias>() : to<Bias>(3 * x);
    });
    wide_bias.fill([d = draw(5, wide_bias.shape())](Index b, Index h, Index i, Index j) {
      return 2 * d(b, h, i, j);
    });
    for (Index b = 0; b < s.batch; ++b) {
      lengths.push_back(static_cast<std::int32_t>(s.key_length - b * (s.key_length / 3)));
      offsets.push_back(offset);
      counts.push_back((std::min)(s.key_length, 2 + b));
    }
    for (Index h = 0; h < s.query_heads; ++h) slopes.push_back(0.3 / static_cast<double>(h + 1));
  }
};

template <class Bias>
std::vector<Kind> kinds_of(const MaskData<Bias>& data, const Sizes& s, Index offset) {
  const Index bottom_right = s.key_length - s.query_length;
  const auto causal_formula = [](Index p0) {
    return keeps([p0](Index, Index, Index i, Index j) { return j <= i + p0; });
  };
  const auto alibi_formula = [offset](std::vector<double> slopes) {
    return changes([offset, slopes](auto score, Index, Index h, Index i, Index j) {
      using A = decltype(score);
      const A slope = static_cast<A>(slopes[static_cast<std::size_t>(h)]);
      return score - slope * static_cast<A>(std::abs(i + offset - j));
    });
  };
  std::vector<Kind> kinds = {
      {"no_mask", no_mask(), Formula{}},
      {"causal", causal(), causal_formula(offset), true},
      {"causal_top_left", causal_top_left(), causal_formula(0), true, true},
      {"causal_from", causal_from(data.offsets), causal_formula(offset), true},
      {"sliding_window", sliding_window(4, 2), keeps([offset](Index, Index, Index i, Index j) {
         return j >= i + offset - 4 && j <= i + offset + 2;
       }),
       true},
      {"sliding_window to the right", sliding_window(kUnlimited, 3),
       keeps([offset](Index, Index, Index i, Index j) { return j <= i + offset + 3; }), true},
      {"key_lengths", key_lengths(data.lengths), keeps([&](Index b, Index, Index, Index j) {
         return j < data.lengths[static_cast<std::size_t>(b)];
       })},
      {"first_keys", first_keys(data.counts), keeps([&](Index b, Index, Index, Index j) {
         return j < data.counts[static_cast<std::size_t>(b)];
       })},
      {"keys_between", keys_between(data.counts, kUnlimited),
       keeps([&](Index b, Index, Index, Index j) {
         return j >= data.counts[static_cast<std::size_t>(b)];
       })},
      {"first_keys or sliding_window", first_keys(1) | sliding_window(3, 0),
       keeps([offset](Index, Index, Index i, Index j) {
         return j < 1 || (j >= i + offset - 3 && j <= i + offset);
       }),
       true},
      {"causal or keep_where or drop_if",
       causal() | keep_where(data.full.view()) |
           drop_if([](ScorePosition at) { return at.key % 3 != at.head % 3; }),
       keeps([&, offset](Index b, Index h, Index i, Index j) {
         return j <= i + offset || data.full(b, h, i, j) || j % 3 == h % 3;
       }),
       true},
      {"keep_where", keep_where(data.full.view()),
       keeps([&](Index b, Index h, Index i, Index j) { return data.full(b, h, i, j); })},
      {"keep_where padding", keep_where(data.padding.view()),
       keeps([&](Index b, Index, Index, Index j) { return data.padding(b, 0, 0, j) != 0; })},
      {"drop_where", drop_where(data.heads_and_queries.view()),
       keeps([&](Index, Index h, Index i, Index) { return !data.heads_and_queries(0, h, i, 0); })},
      {"add_bias", add_bias(data.bias.view()),
       keeps([&](Index b, Index h, Index i, Index j) {
         return data.bias(b, h, i, j) > -infinity<Bias>();
       }) & changes([&](auto score, Index b, Index h, Index i, Index j) {
         using A = decltype(score);
         return score + static_cast<A>(widen(data.bias(b, h, i, j)));
       })},
      {"add_bias of double", add_bias(data.wide_bias.view()),
       changes([&](auto score, Index, Index h, Index, Index j) {
         return score + static_cast<decltype(score)>(data.wide_bias(0, h, 0, j));
       })},
      {"alibi", alibi(), alibi_formula(alibi_slopes(s.query_heads)), true},
      {"alibi with slopes", alibi(data.slopes), alibi_formula(data.slopes), true},
      {"keep_if", keep_if([](ScorePosition at) {
         return (at.batch + at.head + 3 * at.query_position + at.key) % 4 != 0;
       }),
       keeps([offset](Index b, Index h, Index i, Index j) {
         return (b + h + 3 * (i + offset) + j) % 4 != 0;
       }),
       true},
      {"drop_if", drop_if([](ScorePosition at) { return at.query == 2 || at.key % 5 == at.head; }),
       keeps([](Index, Index h, Index i, Index j) { return i != 2 && j % 5 != h; }), true},
      {"modify_score", modify_score([](auto score, ScorePosition at) {
         using A = decltype(score);
         return score * A(0.5) + static_cast<A>((at.key + at.query_position) % 3);
       }),
       changes([offset](auto score, Index, Index, Index i, Index j) {
         using A = decltype(score);
         return score * A(0.5) + static_cast<A>((j + i + offset) % 3);
       }),
       true},
      {"modify_score that masks", modify_score([](auto score, ScorePosition at) {
         using A = decltype(score);
         return at.key % 6 == 1 ? -std::numeric_limits<A>::infinity() : score;
       }),
       keeps([](Index, Index, Index, Index j) { return j % 6 != 1; }), true},
  };
  if (offset == bottom_right) {
    kinds.push_back({"causal_bottom_right", causal_bottom_right(), causal_formula(offset), true});
  }
  return kinds;
}

/// Few rows, rows of several heads in one tile, several key tiles, more queries than keys.
inline std::vector<Sizes> mask_sizes() {
  return {{2, 4, 2, 2, 3, 11, 4, 3},
          {2, 6, 3, 2, 9, 20, 4, 3},
          {1, 2, 1, 1, 30, 150, 3, 2},
          {2, 2, 2, 1, 21, 6, 4, 3}};
}

}  // namespace test
}  // namespace attn

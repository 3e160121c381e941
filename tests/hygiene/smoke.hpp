// tests/hygiene/smoke.hpp - a few calls whose results are known, for programs that are built in
// unusual ways (flags, mixes of translation units). Each unit has its own copy.
//
// Results are judged by their bits: under -ffast-math a comparison with NaN proves nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attn/attention.hpp"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
bool is_finite(float value) { return (bits_of(value) & 0x7F800000u) != 0x7F800000u; }
float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// One small problem: GQA, ragged sizes, a padded layout, NaN in every key that nobody may see, and
/// one row without any key.
struct SmokeProblem {
  // 40 keys and 3 x 21 rows a group: full and partial tiles, more rows than any vector has lanes.
  static constexpr attn::Index kBatch = 2, kHeads = 6, kKeyHeads = 2, kQueries = 21, kKeys = 40,
                               kKeyDim = 5, kValueDim = 3, kValidKeys = 37;
  static constexpr attn::Index kEmptyQuery = 4;

  SmokeProblem()
      : q({kBatch, kHeads, kQueries, kKeyDim}),
        k({kBatch, kKeyHeads, kKeys, kKeyDim}),
        v({kBatch, kKeyHeads, kKeys, kValueDim}),
        dropped(static_cast<std::size_t>(kQueries)) {
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    const float nan = float_of_bits(0x7FC00000u);
    for (attn::Index b = 0; b < kBatch; ++b) {
      for (attn::Index h = 0; h < kKeyHeads; ++h) {
        for (attn::Index j = kValidKeys; j < kKeys; ++j) {
          for (attn::Index d = 0; d < kKeyDim; ++d) k(b, h, j, d) = nan;
          for (attn::Index d = 0; d < kValueDim; ++d) v(b, h, j, d) = nan;
        }
      }
    }
    dropped[static_cast<std::size_t>(kEmptyQuery)] = 1;
  }

  static void fill(attn::Tensor4Buffer<float>& tensor, unsigned seed) {
    unsigned state = seed;
    for (attn::Index i = 0; i < tensor.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      tensor.data()[i] = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;  // [-1, 1)
    }
  }

  bool sees(attn::Index i, attn::Index j) const {
    return j < kValidKeys && j <= i + (kKeys - kQueries) && i != kEmptyQuery;
  }

  /// The same in double, by the formula.
  double expected(attn::Index b, attn::Index h, attn::Index i, attn::Index d) const {
    const attn::Index key_head = h / (kHeads / kKeyHeads);
    double sum = 0, weighted = 0;
    for (attn::Index j = 0; j < kKeys; ++j) {
      if (!sees(i, j)) continue;
      double score = 0;
      for (attn::Index e = 0; e < kKeyDim; ++e) {
        score += static_cast<double>(q(b, h, i, e)) * static_cast<double>(k(b, key_head, j, e));
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(kKeyDim)));
      sum += weight;
      weighted += weight * static_cast<double>(v(b, key_head, j, d));
    }
    return sum > 0 ? weighted / sum : 0.0;
  }

  /// causal, the valid keys, and a row that a mask empties.
  auto mask() const {
    const attn::Tensor4<const std::uint8_t> rows(dropped.data(), {1, 1, kQueries, 1});
    return attn::causal_from(kKeys - kQueries) & attn::key_lengths(kValidKeys) &
           attn::drop_where(rows);
  }

  void check(const attn::Tensor4Buffer<float>& out) const {
    // |scores| <= 5 / sqrt(5): a weight's relative error is a few epsilon, and so is the output's
    // against |v| <= 1; 64 epsilon leave room for -ffast-math's reciprocals.
    const double tolerance = 64 * 1.1920929e-7;
    for (attn::Index b = 0; b < kBatch; ++b) {
      for (attn::Index h = 0; h < kHeads; ++h) {
        for (attn::Index i = 0; i < kQueries; ++i) {
          for (attn::Index d = 0; d < kValueDim; ++d) {
            const float got = out(b, h, i, d);
            require(is_finite(got), "no NaN of a masked key reaches the output");
            if (i == kEmptyQuery) require(bits_of(got) == 0, "a row without keys is +0");
            const double error = static_cast<double>(got) - expected(b, h, i, d);
            require(error <= tolerance && error >= -tolerance, "the output is right");
          }
        }
      }
    }
  }

  attn::Tensor4Buffer<float> q, k, v;
  std::vector<std::uint8_t> dropped;
};

/// Runs the problem and checks it; `executor` may be null.
[[maybe_unused]] void smoke(attn::Executor* executor = nullptr) {
  const SmokeProblem problem;
  attn::AttentionOptions options;
  options.executor = executor;

  attn::Tensor4Buffer<float> out({SmokeProblem::kBatch, SmokeProblem::kHeads,
                                  SmokeProblem::kQueries, SmokeProblem::kValueDim});
  attn::Tensor4Buffer<float> log_sum_exp(
      {SmokeProblem::kBatch, SmokeProblem::kHeads, SmokeProblem::kQueries, 1});
  attn::AttentionOutputs<float> extra;
  extra.log_sum_exp = log_sum_exp.view();
  attn::scaled_dot_product_attention(problem.q.view(), problem.k.view(), problem.v.view(),
                                     out.view(), problem.mask(), options, extra);
  problem.check(out);
  for (attn::Index i = 0; i < SmokeProblem::kQueries; ++i) {
    const float value = log_sum_exp(1, 5, i, 0);
    if (i == SmokeProblem::kEmptyQuery) {
      require(bits_of(value) == 0xFF800000u, "log_sum_exp of a row without keys is -infinity");
    } else {
      require(is_finite(value), "log_sum_exp is finite");
    }
  }

  // Decode: one query, so the other form of tile.
  const auto last = problem.q.view().slice_length(SmokeProblem::kQueries - 1, 1);
  const auto result =
      attn::scaled_dot_product_attention(last, problem.k.view(), problem.v.view(),
                                         attn::key_lengths(SmokeProblem::kValidKeys), options);
  for (attn::Index h = 0; h < SmokeProblem::kHeads; ++h) {
    const double error = static_cast<double>(result.output(1, h, 0, 2)) -
                         problem.expected(1, h, SmokeProblem::kQueries - 1, 2);
    require(is_finite(result.output(1, h, 0, 2)), "decode is finite");
    require(error <= 1e-5 && error >= -1e-5, "decode is right");
  }
}

}  // namespace

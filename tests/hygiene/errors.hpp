// tests/hygiene/errors.hpp - one call for every public function that may raise an error, for the
// programs that mix files with and without exceptions. Each unit has its own copy.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <limits>

#include "attn/attn.hpp"
#include "attn/reference.hpp"

namespace {

struct Failure {
  const char* name;
  void (*call)();
};

attn::Tensor4<float> floats(attn::Shape4 shape) {
  static float storage[4096] = {};
  static attn::Index next = 0;
  if (next + shape.size() > 4096) next = 0;
  float* const first = storage + next;
  next += shape.size();
  return {first, shape};
}

const Failure kFailures[] = {
    {"slice_batch",
     [] {
       floats({2, 1, 1, 1}).slice_batch(1, 2);
     }},
    {"slice_heads",
     [] {
       floats({1, 2, 1, 1}).slice_heads(-1, 1);
     }},
    {"slice_length",
     [] {
       floats({1, 1, 2, 1}).slice_length(3, 0);
     }},
    {"view",
     [] {
       Eigen::MatrixXf matrix(2, 5);
       attn::view(matrix, 2);
     }},
    {"view of batches",
     [] {
       Eigen::MatrixXf matrix(3, 4);
       attn::view(matrix, 2, 2);
     }},
    {"Tensor4Buffer",
     [] {
       attn::Tensor4Buffer<float> buffer({1, 1, -1, 1});
     }},
    {"ThreadPool", [] { attn::ThreadPool pool(0); }},
    {"attention, shapes",
     [] {
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 3}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}));
     }},
    {"attention that returns, shapes",
     [] {
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 3}),
                                          floats({1, 2, 5, 6}));
     }},
    {"attention, options",
     [] {
       attn::AttentionOptions options;
       options.softcap = -1;
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
                                          attn::no_mask(), options);
     }},
    {"attention, masks",
     [] {
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
                                          attn::alibi() & attn::causal());
     }},
    {"attention, AnyMask",
     [] {
       const attn::AnyMask mask = attn::key_lengths(6);
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}), mask);
     }},
    {"attention, unions",
     [] {
       const attn::AnyMask hidden = attn::alibi();
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
                                          attn::first_keys(1) | hidden);
     }},
    {"attention, segments",
     [] {
       static const std::int32_t ids[4] = {};
       attn::scaled_dot_product_attention(
           floats({1, 2, 3, 4}), floats({1, 2, 5, 4}), floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
           attn::same_segment(attn::Tensor4<const std::int32_t>(ids, {1, 1, 4, 1})));
     }},
    {"attention, new keys",
     [] {
       static const bool flags[4] = {};
       attn::scaled_dot_product_attention(
           floats({1, 2, 3, 4}), floats({1, 2, 5, 4}), floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
           attn::keep_where(attn::Tensor4<const bool>(flags, {1, 1, 1, 4}), 2));
     }},
    {"attention, repeated batches",
     [] {
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                          floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
                                          attn::repeat_batch(attn::no_mask(), 2));
     }},
    {"attention before the cache is appended to",
     [] {
       const attn::KeyValueCache<float> cache(1, 2, 8, 4);
       attn::scaled_dot_product_attention(floats({1, 2, 1, 4}), cache, floats({1, 2, 1, 4}),
                                          attn::causal());
     }},
    {"attention of Eigen matrices",
     [] {
       Eigen::MatrixXf matrix(3, 4), out(3, 5);
       attn::scaled_dot_product_attention(matrix, matrix, matrix, out);
     }},
    {"ragged_attention, weights",
     [] {
       static const attn::Index starts[] = {0, 2, 3};
       attn::AttentionOutputs<float> extra;
       extra.weights = floats({1, 2, 3, 3});
       attn::ragged_attention(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}), floats({1, 2, 3, 4}),
                              floats({1, 2, 3, 4}), starts, attn::no_mask(), {}, extra);
     }},
    {"attention over a cache",
     [] {
       const attn::KeyValueCache<float> cache(1, 2, 4, 3);
       attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), cache, floats({1, 2, 3, 3}));
     }},
    {"attention_workspace_bytes",
     [] {
       attn::attention_workspace_bytes(floats({1, 2, 3, 4}), floats({1, 3, 5, 4}),
                                       floats({1, 2, 5, 6}));
     }},
    {"KeyValueCache",
     [] {
       attn::KeyValueCache<float> cache(floats({1, 2, 4, 3}), floats({1, 2, 5, 3}));
     }},
    {"KeyValueCache, a shape without capacity",
     [] { attn::KeyValueCache<float> cache{attn::CacheShape()}; }},
    {"RollingKeyValueCache, a shape without window",
     [] { attn::RollingKeyValueCache<float> cache{attn::CacheShape()}; }},
    {"PagedKeyValueCache, a shape without pages",
     [] { attn::PagedKeyValueCache<float> cache{attn::CacheShape()}; }},
    {"KeyValueCache, sizes that overflow",
     [] { attn::KeyValueCache<float> cache(attn::Index{1} << 62, 0, 0, 0); }},
    {"KeyValueCache::append",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.append(floats({1, 2, 5, 3}), floats({1, 2, 5, 3}));
     }},
    {"KeyValueCache::truncate",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.truncate(1);
     }},
    {"KeyValueCache::reorder",
     [] {
       static const attn::Index parents[] = {1};
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.reorder(parents);
     }},
    {"KeyValueCache::keep_tokens",
     [] {
       static const attn::Index tokens[] = {0};
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.keep_tokens(0, tokens);
     }},
    {"step of a layer with counts",
     [] {
       const attn::MultiHeadAttention<float> layer(4, 2, 1);
       attn::KeyValueCache<float> cache(1, 2, 4, 2);
       layer.step(floats({1, 1, 2, 4}), cache, floats({1, 1, 2, 4}), 3);
     }},
    {"heads of a layer", [] { attn::MultiHeadAttention<float>(4, 2, 1).heads(1, 2); }},
    {"step of a layer with positions",
     [] {
       static const std::int32_t positions[2] = {};
       const attn::MultiHeadAttention<float> layer(4, 2, 1);
       attn::KeyValueCache<float> cache(1, 2, 4, 2);
       layer.step(floats({1, 1, 2, 4}), cache, floats({1, 1, 2, 4}), attn::no_mask(), {}, nullptr,
                  attn::Tensor4<const std::int32_t>(positions, {1, 1, 2, 1}));
     }},
    {"KeyValueCache::append of keys alone",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.append(floats({1, 2, 1, 3}));
     }},
    {"KeyValueCache of values in keys",
     [] {
       attn::KeyValueCache<float> cache(floats({1, 2, 4, 3}), 4);
     }},
    {"RotaryEmbedding::shift",
     [] {
       const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
       rotary.shift(floats({1, 1, 1, 6}), 1);
     }},
    {"KeyValueCache::save",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.save(floats({1, 2, 4, 3}), floats({1, 2, 3, 3}));
     }},
    {"KeyValueCache::restore",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 4, 3);
       cache.restore(5, floats({1, 2, 4, 3}), floats({1, 2, 4, 3}));
     }},
    {"RollingKeyValueCache", [] { attn::RollingKeyValueCache<float> cache(1, 2, 0, 3); }},
    {"RollingKeyValueCache::truncate",
     [] {
       attn::RollingKeyValueCache<float> cache(1, 2, 1, 3);
       cache.append(floats({1, 2, 3, 3}), floats({1, 2, 3, 3}));
       cache.truncate(2);
     }},
    {"PagedKeyValueCache", [] { attn::PagedKeyValueCache<float> cache(4, 0, 1, 2, 3); }},
    {"PagedKeyValueCache::append_to",
     [] {
       attn::PagedKeyValueCache<float> cache(1, 4, 1, 2, 3);
       cache.append_to(0, floats({1, 2, 5, 3}), floats({1, 2, 5, 3}));
     }},
    {"PagedKeyValueCache::share_prefix",
     [] {
       attn::PagedKeyValueCache<float> cache(1, 4, 2, 2, 3);
       cache.share_prefix(0, 1, 1);
     }},
    {"RotaryEmbedding", [] { attn::RotaryEmbedding rotary(3, attn::RotaryPairing::half_split); }},
    {"RotaryEmbedding, longrope",
     [] {
       attn::RotaryOptions options;
       options.scaling = attn::RotaryScaling::longrope({}, {}, 4, 16, 64);
       attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split, 10000, options);
     }},
    {"RotaryEmbedding::from_frequencies",
     [] { attn::RotaryEmbedding::from_frequencies(2, attn::RotaryPairing::half_split, {}); }},
    {"RotaryEmbedding::from_tables",
     [] {
       attn::RotaryEmbedding::from_tables(2, attn::RotaryPairing::half_split, floats({1, 1, 4, 2}),
                                          floats({1, 1, 4, 2}));
     }},
    {"RotaryEmbedding::apply",
     [] {
       const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
       rotary.apply(floats({1, 1, 4, 2}), 0);
     }},
    {"RotaryEmbedding, sections",
     [] {
       static const attn::Index sections[] = {1};
       attn::RotaryOptions options;
       options.sections = sections;
       attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split, 10000, options);
     }},
    {"RotaryEmbedding::apply, a view of positions",
     [] {
       static const std::int32_t positions[3] = {};
       const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
       rotary.apply(floats({1, 1, 2, 4}),
                    attn::Tensor4<const std::int32_t>(positions, {1, 1, 3, 1}));
     }},
    {"RotaryEmbedding::apply, positions that overflow",
     [] {
       const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
       rotary.apply(floats({1, 1, 2, 4}), (std::numeric_limits<attn::Index>::max)());
     }},
    {"heatmap_svg",
     [] {
       attn::HeatmapOptions options;
       options.key_labels.resize(2);
       attn::heatmap_svg(Eigen::MatrixXf::Ones(2, 3), options);
     }},
    {"inspect_attention",
     [] {
       attn::inspect_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}), floats({1, 2, 5, 6}), 0,
                               2);
     }},
    {"merge_attention",
     [] {
       attn::merge_attention(floats({1, 2, 3, 4}), floats({1, 2, 3, 1}), floats({1, 2, 3, 5}),
                             floats({1, 2, 3, 1}), floats({1, 2, 3, 4}), floats({1, 2, 3, 1}));
     }},
    {"ragged_attention",
     [] {
       static const attn::Index starts[] = {0, 2, 4};
       attn::ragged_attention(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}), floats({1, 2, 3, 4}),
                              floats({1, 2, 3, 4}), starts);
     }},
    {"attention over a cache",
     [] {
       const attn::KeyValueCache<float> cache(1, 2, 8, 4);
       attn::scaled_dot_product_attention(floats({1, 3, 1, 4}), cache, floats({1, 3, 1, 4}));
     }},
    {"KeyValueCache", [] { attn::KeyValueCache<float> cache(1, 2, -8, 4); }},
    {"KeyValueCache::append",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 2, 4);
       cache.append(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}));
     }},
    {"KeyValueCache::truncate",
     [] {
       attn::KeyValueCache<float> cache(1, 2, 2, 4);
       cache.truncate(1);
     }},
    {"RollingKeyValueCache", [] { attn::RollingKeyValueCache<float> cache(1, 2, 0, 4); }},
    {"RollingKeyValueCache::append",
     [] {
       attn::RollingKeyValueCache<float> cache(1, 2, 3, 4);
       cache.append(floats({1, 2, 1, 4}), floats({1, 2, 1, 5}));
     }},
    {"PagedKeyValueCache", [] { attn::PagedKeyValueCache<float> cache(2, 0, 1, 2, 4); }},
    {"PagedKeyValueCache::append",
     [] {
       attn::PagedKeyValueCache<float> cache(1, 2, 1, 2, 4);
       cache.append(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}));
     }},
    {"PagedKeyValueCache::share_prefix",
     [] {
       attn::PagedKeyValueCache<float> cache(1, 2, 2, 2, 4);
       cache.share_prefix(0, 1, 1);
     }},
    {"ragged_attention",
     [] {
       const std::int32_t starts[] = {0, 2, 4};
       attn::ragged_attention(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}), floats({1, 2, 3, 4}),
                              floats({1, 2, 3, 4}), starts);
     }},
    {"inspect_attention",
     [] {
       attn::inspect_attention(floats({1, 2, 3, 4}), floats({1, 2, 3, 4}), floats({1, 2, 3, 4}), 0,
                               2);
     }},
    {"heatmap_svg",
     [] {
       attn::HeatmapOptions options;
       options.max_weight = -1;
       attn::heatmap_svg(Eigen::MatrixXf::Zero(2, 2), options);
     }},
    {"linear, biases",
     [] {
       static const float bias[3] = {};
       attn::linear(floats({1, 1, 3, 4}), attn::LinearWeights<float>{floats({1, 1, 5, 4}), bias},
                    floats({1, 1, 3, 5}));
     }},
    {"MultiHeadAttention, biases",
     [] {
       static const float bias[3] = {};
       const attn::LinearWeights<float> weights{floats({1, 1, 4, 4}), bias};
       attn::AttentionConfig config;
       config.model_dim = 4;
       config.num_heads = 2;
       attn::MultiHeadAttention<float> layer(config, weights, weights, weights, weights);
     }},
    {"layer_norm",
     [] {
       attn::layer_norm(floats({1, 1, 3, 4}), attn::LayerNormWeights<float>(),
                        floats({1, 1, 3, 5}));
     }},
    {"RotaryEmbedding", [] { attn::RotaryEmbedding rotary(3, attn::RotaryPairing::interleaved); }},
    {"RotaryEmbedding::apply",
     [] {
       const attn::RotaryEmbedding rotary(4, attn::RotaryPairing::half_split);
       rotary.apply(floats({1, 1, 1, 6}), 0);
     }},
    {"attention_costs", [] { attn::attention_costs(attn::AttentionConfig(), 10); }},
    {"attention_cost, bytes that overflow",
     [] {
       attn::AttentionConfig config;
       config.model_dim = config.num_heads = 2;
       attn::attention_cost("layer", config, 1, attn::Index{1} << 62);
     }},
    {"MultiHeadAttention, weights that overflow",
     [] { attn::MultiHeadAttention<float> layer(attn::Index{1} << 33, 1, 1); }},
    {"MultiHeadAttention", [] { attn::MultiHeadAttention<float> layer(8, 3, 1); }},
    {"MultiHeadAttention::forward",
     [] {
       const attn::MultiHeadAttention<float> layer(8, 2, 1);
       layer.forward(floats({1, 1, 3, 8}), floats({1, 1, 3, 7}));
     }},
    {"MultiHeadAttention::set_head_transform",
     [] {
       const attn::RotaryEmbedding rotary(6, attn::RotaryPairing::half_split);
       attn::HeadTransform<float> transform;
       transform.rotary = &rotary;
       attn::MultiHeadAttention<float> layer(8, 2, 1);
       layer.set_head_transform(transform);
     }},
    {"linear_workspace_bytes",
     [] {
       attn::linear_workspace_bytes(floats({1, 1, 3, 3}),
                                    attn::LinearWeights<float>{floats({1, 1, 5, 4})});
     }},
    {"AttentionBlock::forward",
     [] {
       attn::AttentionConfig config;
       config.model_dim = 8;
       config.num_heads = 2;
       const attn::AttentionBlock<float> block(config, 1);
       block.forward(floats({1, 1, 3, 7}), floats({1, 1, 3, 8}));
     }},
    {"reference_attention",
     [] {
       attn::reference_attention(
           floats({1, 2, 3, 4}), floats({1, 2, 5, 3}), floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
           [](attn::Index, attn::Index, attn::Index, attn::Index) { return true; },
           [](double score, attn::Index, attn::Index, attn::Index, attn::Index) { return score; });
     }},
};

}  // namespace

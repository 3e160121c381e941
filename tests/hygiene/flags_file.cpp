// All public functions, compiled once a set of flags: prints a checksum of what each computes,
// after ATTN_FLAGS_NAME. Alone in its program or with files of other flags, linked first or last,
// the checksums must be the same.
#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/reference.hpp"
#include "hygiene/flags.hpp"

#define ATTN_TEXT_OF(name) #name
#define ATTN_TEXT(name) ATTN_TEXT_OF(name)

namespace {

using attn::Index;
using attn::Shape4;
template <class T>
using Buffer = attn::Tensor4Buffer<T>;

[[maybe_unused]] void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s: %s\n", ATTN_TEXT(ATTN_FLAGS_NAME), what);
  std::exit(1);
}

/// FNV-1a. Source: G. Fowler, L. Noll, K.-P. Vo, "The FNV non-cryptographic hash algorithm".
class Line {
 public:
  explicit Line(const char* function) : function_(function) {}
  ~Line() {
    std::printf("%s: %s %016llx\n", ATTN_TEXT(ATTN_FLAGS_NAME), function_,
                static_cast<unsigned long long>(hash_));
  }
  void add_bytes(const void* data, std::size_t count) {
    const auto* const bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < count; ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001B3u;
  }
  template <class T>
  void add(const Buffer<T>& tensor) {
    add_bytes(tensor.data(), static_cast<std::size_t>(tensor.size()) * sizeof(T));
  }
  template <class T, class A>
  void add(const attn::AttentionResult<T, A>& result) {
    add(result.output);
    add(result.weights);
    add(result.log_sum_exp);
  }
  void add(double number) { add_bytes(&number, sizeof number); }
  void add(const std::string& text) { add_bytes(text.data(), text.size()); }

 private:
  const char* function_;
  std::uint64_t hash_ = 0xCBF29CE484222325u;
};

template <class T>
Buffer<T> numbers(Shape4 shape, unsigned seed) {
  Buffer<T> tensor(shape);
  for (Index i = 0; i < tensor.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    tensor.data()[i] = static_cast<T>(static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
  }
  return tensor;
}

const auto kAll = attn::Want::weights | attn::Want::log_sum_exp;

/// q, k and v of two batches, grouped heads, and sizes that fill no vector.
template <class T>
struct Problem {
  Buffer<T> q, k, v;
  explicit Problem(Index queries, Index keys = 43)
      : q(numbers<T>({2, 4, queries, 13}, 1)),
        k(numbers<T>({2, 2, keys, 13}, 2)),
        v(numbers<T>({2, 2, keys, 11}, 3)) {}
};

template <class T>
void attend(Line& line) {
  attn::AttentionOptions options;
  options.scale = 3;  // peaked, so that the maximum moves
  for (const Index queries : {1, 3, 40}) {
    const Problem<T> p(queries);
    line.add(attn::scaled_dot_product_attention(p.q, p.k, p.v, attn::no_mask(), options));
    line.add(attn::scaled_dot_product_attention(p.q, p.k, p.v, attn::causal_bottom_right(), options,
                                                kAll));
  }
}

void attend_with_options(Line& line) {
  const double sinks[] = {0.5, -1, 2, 0};
  attn::AttentionOptions options;
  options.softcap = 2;
  options.sinks = sinks;
  options.dropout.probability = 0.3;
  options.dropout.seed = 5;
  for (const Index queries : {1, 21}) {
    const Problem<float> p(queries);
    line.add(attn::scaled_dot_product_attention(p.q, p.k, p.v, attn::no_mask(), options, kAll));
  }
  const Problem<float> few(1, 9000);  // more than one split of keys
  options.dropout.probability = 0;
  line.add(attn::scaled_dot_product_attention(few.q, few.k, few.v, attn::no_mask(), options, kAll));
}

template <class M>
void mask_scores(Line& line, const M& mask) {
  for (const Index queries : {1, 21}) {
    const Problem<float> p(queries);
    line.add(attn::scaled_dot_product_attention(p.q, p.k, p.v, mask, {}, kAll));
    const Problem<double> in_double(queries);
    line.add(attn::scaled_dot_product_attention(in_double.q, in_double.k, in_double.v, mask));
  }
}

void mask_all(Line& line) {
  const Buffer<float> bias = numbers<float>({1, 4, 1, 43}, 7);
  const Buffer<double> wide_bias = numbers<double>({2, 1, 1, 43}, 8);
  std::vector<std::uint8_t> kept(43);
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i % 3 != 1;
  const attn::Tensor4<const std::uint8_t> flags(kept.data(), {1, 1, 1, 43});
  const std::vector<Index> lengths = {43, 29};
  mask_scores(line, attn::alibi() & attn::causal_bottom_right());
  mask_scores(line, attn::add_bias(bias) & attn::sliding_window(9, 3) & attn::add_bias(wide_bias));
  mask_scores(line, attn::keep_where(flags) & attn::key_lengths(lengths));
  mask_scores(line, attn::drop_where(flags));
  mask_scores(line, attn::keep_if([](attn::ScorePosition at) { return at.key % 5 != 2; }) &
                        attn::modify_score([](auto score, attn::ScorePosition at) {
                          return score * static_cast<decltype(score)>(at.key % 2 == 0 ? 0.5 : 2);
                        }));
  mask_scores(line, attn::AnyMask(attn::alibi() & attn::sliding_window(20, 0)));
  Buffer<std::int32_t> query_ids({1, 1, 21, 1}), key_ids({1, 1, 43, 1});
  for (Index i = 0; i < 21; ++i) query_ids(0, 0, i, 0) = static_cast<std::int32_t>(i / 5);
  for (Index i = 0; i < 43; ++i) key_ids(0, 0, i, 0) = static_cast<std::int32_t>(i / 7);
  for (const Index queries : {1, 21}) {
    const Problem<float> p(queries);
    const auto of_queries = query_ids.view().slice_length(0, queries);
    line.add(attn::scaled_dot_product_attention(
        p.q, p.k, p.v, attn::same_segment(of_queries, key_ids.view()), {}, kAll));
  }
  mask_scores(line, attn::keep_where(flags, 0) | attn::first_keys(2));
  mask_scores(line, attn::repeat_batch(attn::drop_where(flags) & attn::add_bias(bias), 1));
  mask_scores(line, attn::first_keys(2) | attn::sliding_window(3, 1));
  mask_scores(line, (attn::keep_where(flags) | attn::keys_between(5, lengths)) &
                        attn::causal_bottom_right());
  for (const double slope : attn::alibi_slopes(12)) line.add(slope);
}

void merge(Line& line) {
  const Problem<float> a(5), b(5, 17);
  const auto left = attn::scaled_dot_product_attention(a.q, a.k, a.v, attn::no_mask(), {}, kAll);
  const auto right = attn::scaled_dot_product_attention(a.q, b.k, b.v, attn::no_mask(), {}, kAll);
  Buffer<float> out(left.output.shape()), lse(left.log_sum_exp.shape());
  attn::merge_attention(left.output, left.log_sum_exp, right.output, right.log_sum_exp, out, lse);
  line.add(out);
  line.add(lse);
}

template <class T>
void project(Line& line) {
  const Buffer<T> weight = numbers<T>({1, 1, 19, 37}, 4);
  const std::vector<T> bias(19, static_cast<T>(0.25));
  for (const Index length : {1, 33}) {
    const Buffer<T> x = numbers<T>({2, 1, length, 37}, 5);
    Buffer<T> out({2, 1, length, 19});
    attn::linear(x, attn::LinearWeights<T>{weight.view(), bias}, out);
    line.add(out);
  }
}

template <class T>
void normalize(Line& layer_line, Line& rms_line) {
  const Buffer<T> x = numbers<T>({2, 1, 3, 37}, 6);
  const std::vector<T> gamma(37, static_cast<T>(1.375)), beta(37, static_cast<T>(0.1));
  Buffer<T> out(x.shape());
  attn::layer_norm(x, attn::LayerNormWeights<T>{gamma, beta}, out);
  layer_line.add(out);
  attn::rms_norm(x, attn::RmsNormWeights<T>{gamma}, out);
  rms_line.add(out);
}

void turn(Line& line) {
  const std::vector<double> factors = {1, 1.5, 2, 2.5, 3, 4};
  for (const auto& scaling :
       {attn::RotaryScaling::none(), attn::RotaryScaling::yarn(4, 64),
        attn::RotaryScaling::llama3(8, 64), attn::RotaryScaling::dynamic_ntk(2, 64, 256),
        attn::RotaryScaling::longrope(factors, factors, 4, 64, 256)}) {
    attn::RotaryOptions options;
    options.scaling = scaling;
    const attn::RotaryEmbedding rotary(12, attn::RotaryPairing::half_split, 10000, options);
    Buffer<float> x = numbers<float>({1, 2, 9, 12}, 9);
    rotary.apply(x, 61);
    line.add(x);
  }
}

template <class Cache>
void fill_and_attend(Line& line, Cache cache) {
  for (const Index queries : {30, 1, 3}) {
    const Problem<float> p(queries, queries);
    cache.append(p.k, p.v);
    line.add(attn::scaled_dot_product_attention(p.q, cache, attn::causal(), {}, kAll));
  }
  const Cache copy = cache;
  const Problem<float> p(2);
  line.add(attn::scaled_dot_product_attention(p.q, copy));
}

template <class T>
void fill_caches(Line& line) {
  fill_and_attend(line, attn::KeyValueCache<T>(2, 2, 64, 13, 11));
  fill_and_attend(line, attn::RollingKeyValueCache<T>(2, 2, 16, 13, 11, 4));
  fill_and_attend(line, attn::PagedKeyValueCache<T>(32, 8, 2, 2, 13, 11));
}

void pack(Line& line) {
  const std::vector<Index> starts = {0, 3, 3, 20};
  const auto q = numbers<float>({1, 4, 20, 13}, 1), k = numbers<float>({1, 2, 20, 13}, 2),
             v = numbers<float>({1, 2, 20, 11}, 3);
  Buffer<float> out({1, 4, 20, 11});
  attn::ragged_attention(q, k, v, out, starts, attn::causal());
  line.add(out);
}

void run_layers(Line& layer_line, Line& block_line) {
  attn::AttentionConfig config;
  config.model_dim = 24;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  const attn::RotaryEmbedding rotary(6, attn::RotaryPairing::interleaved);
  attn::GroupedQueryAttention<float> layer(config, 3, attn::Initialization::xavier_uniform);
  attn::HeadTransform<float> transform;
  transform.query_norm = transform.key_norm = attn::RmsNormWeights<float>();
  transform.rotary = &rotary;
  layer.set_head_transform(transform);
  attn::ThreadPool pool(2);
  attn::AttentionOptions options;
  options.executor = &pool;
  attn::KeyValueCache<float> cache(1, 2, 64, 6);
  const attn::AttentionBlock<float> block(layer, 0.25);
  options.dropout.seed = 7;
  for (const Index length : {20, 1}) {
    const auto x = numbers<float>({1, 1, length, 24}, 5);
    Buffer<float> out(x.shape());
    layer.forward(x, out, attn::causal(), options);
    layer_line.add(out);
    layer.step(x, cache, out, attn::causal(), options);
    layer_line.add(out);
    block.forward(x, out, attn::causal(), options, {}, attn::BlockMode::training);
    block_line.add(out);
  }
}

void look(Line& line) {
  const Problem<float> p(6, 9);
  const auto inspection = attn::inspect_attention(p.q, p.k, p.v, 1, 2, attn::causal_bottom_right());
  line.add(inspection.to_string());
  line.add(inspection.scaled.values);
  line.add(inspection.weights.values);
  line.add(attn::heatmap_svg(inspection.weights.matrix()));
  attn::AttentionConfig config;
  config.model_dim = 4096;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  std::ostringstream costs;
  costs << attn::attention_costs(config, 1000);
  line.add(costs.str());
}

void follow_the_book(Line& line) {
  const Problem<float> p(5);
  Buffer<float> out({2, 4, 5, 11});
  attn::reference_attention(
      p.q, p.k, p.v, out, [](Index, Index, Index i, Index j) { return j <= i + 3; },
      [](double score, Index, Index, Index, Index) { return score; });
  line.add(out);
}

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
/// 0 finite, 1 infinite, 2 NaN.
[[maybe_unused]] int kind_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= 0x7FFFFFFFu;
  return bits < 0x7F800000u ? 0 : bits == 0x7F800000u ? 1 : 2;
}

/// NaN in a key that is seen makes its rows NaN, an infinite value its outputs infinite; whatever
/// files of the program do not promise it.
void keep_special_values(Line& line) {
  for (const Index queries : {1, 20}) {
    Problem<float> p(queries);
    p.k(1, 0, 7, 2) = from_bits(0x7FC00000u);
    p.v(0, 1, 5, 3) = from_bits(0x7F800000u);
    const auto result =
        attn::scaled_dot_product_attention(p.q, p.k, p.v, attn::no_mask(), {}, kAll);
    line.add(result);
#if !defined(__FAST_MATH__)
    for (Index i = 0; i < queries; ++i) {
      require(kind_of(result.output(1, 1, i, 4)) == 2 && kind_of(result.weights(1, 0, i, 3)) == 2 &&
                  kind_of(result.log_sum_exp(1, 0, i, 0)) == 2,
              "a live NaN is lost");
      require(kind_of(result.output(0, 2, i, 3)) == 1, "an infinite value is lost");
      require(kind_of(result.output(0, 0, i, 3)) == 0, "an infinite value is elsewhere");
    }
#endif
  }
}

void print_all() {
  {
    Line line("attention of float");
    attend<float>(line);
  }
  {
    Line line("attention of double");
    attend<double>(line);
  }
  {
    Line line("attention of half");
    attend<Eigen::half>(line);
  }
  {
    Line line("attention of bfloat16");
    attend<Eigen::bfloat16>(line);
  }
  {
    Line line("attention with options");
    attend_with_options(line);
  }
  {
    Line line("attention with masks");
    mask_all(line);
  }
  {
    Line line("attention over caches");
    fill_caches<float>(line);
    fill_caches<Eigen::half>(line);
  }
  {
    Line line("attention, ragged");
    pack(line);
  }
  {
    Line line("attention, merged");
    merge(line);
  }
  {
    Line line("linear");
    project<float>(line);
    project<double>(line);
  }
  {
    Line layer_line("layer_norm"), rms_line("rms_norm");
    normalize<float>(layer_line, rms_line);
    normalize<double>(layer_line, rms_line);
  }
  {
    Line line("rotary");
    turn(line);
  }
  {
    Line layer_line("layers"), block_line("blocks");
    run_layers(layer_line, block_line);
  }
  {
    Line line("inspection, costs, heatmap");
    look(line);
  }
  {
    Line line("reference");
    follow_the_book(line);
  }
  Line line("special values");
  keep_special_values(line);
}

FlagsFile this_file = {ATTN_TEXT(ATTN_FLAGS_NAME), print_all, nullptr};
[[maybe_unused]] const bool is_added = (add_flags_file(this_file), true);

}  // namespace

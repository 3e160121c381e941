// bench/compare/side.cpp - what speed.cpp times, as a shared library. It is built once with each of
// two versions of attn, which then live in one process without sharing a function.
#include "side.hpp"

#include <Eigen/Core>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "attn/attn.hpp"

namespace {

using attn::Index;
using attn::Shape4;
using Call = std::function<void()>;

/// The memory of the runner, handed out piece by piece: both sides read and write the same.
class Memory {
 public:
  Memory(char* data, std::size_t size) : next_(data), end_(data + size) {}

  /// Numbers between -1 and 1, the same on both sides.
  template <class T>
  attn::Tensor4<T> tensor(Shape4 shape) {
    constexpr std::size_t kAlignment = 4096;
    T* const data = reinterpret_cast<T*>(next_);
    const std::size_t bytes = static_cast<std::size_t>(shape.size()) * sizeof(T);
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (next_ > end_) {
      std::fputs("side.cpp: a case needs more than kMemory\n", stderr);
      std::abort();
    }
    for (Index i = 0; i < shape.size(); ++i) data[i] = static_cast<T>(draw());
    return {data, shape};
  }

 private:
  float draw() {
    seed_ = seed_ * 1664525u + 1013904223u;  // Numerical Recipes' generator
    return static_cast<float>(seed_ >> 8) * 0x1p-23f - 1.0f;
  }

  char *next_, *end_;
  std::uint32_t seed_ = 1;
};

struct Sizes {
  Index batch = 1, heads = 8, kv_heads = 8, queries = 1, keys = 1, dim = 64;
};
Sizes square(Index length, Index dim) { return {1, 8, 8, length, length, dim}; }

template <class T>
struct Tensors {
  attn::Tensor4<T> q, k, v, out;

  Tensors(Memory& memory, const Sizes& s)
      : q(memory.tensor<T>({s.batch, s.heads, s.queries, s.dim})),
        k(memory.tensor<T>({s.batch, s.kv_heads, s.keys, s.dim})),
        v(memory.tensor<T>(k.shape())),
        out(memory.tensor<T>(q.shape())) {}
};

template <class T = float, class M = attn::NoMask>
Call attend(Memory& memory, const Sizes& sizes, const M& mask = M(),
            const attn::AttentionOptions& options = {}) {
  const Tensors<T> x(memory, sizes);
  return [=] { attn::scaled_dot_product_attention(x.q, x.k, x.v, x.out, mask, options); };
}

/// Fills a cache with what lies in `chunk`, again and again.
template <class Cache>
void fill(Memory& memory, const Sizes& s, Cache& cache) {
  const Index chunk = 64;
  const auto k = memory.tensor<float>({s.batch, s.kv_heads, chunk, s.dim});
  const auto v = memory.tensor<float>(k.shape());
  for (Index i = 0; i < s.keys; i += chunk) cache.append(k, v);
}

template <class Cache>
Call decode_from(Memory& memory, const Sizes& s, Cache cache) {
  const auto q = memory.tensor<float>({s.batch, s.heads, s.queries, s.dim});
  const auto out = memory.tensor<float>(q.shape());
  fill(memory, s, cache);
  const auto held = std::make_shared<const Cache>(std::move(cache));
  return [=] { attn::scaled_dot_product_attention(q, *held, out, attn::causal()); };
}
template <class T = float>
Call decode(Memory& memory, const Sizes& s) {
  const auto keys = memory.tensor<T>({s.batch, s.kv_heads, s.keys, s.dim});
  const auto values = memory.tensor<T>(keys.shape());
  return decode_from(memory, s, attn::KeyValueCache<T>(keys, values));
}
Call decode_paged(Memory& memory, const Sizes& s, Index page) {
  return decode_from(
      memory, s, attn::PagedKeyValueCache<float>(s.keys / page, page, s.batch, s.kv_heads, s.dim));
}
Call decode_rolling(Memory& memory, const Sizes& s, Index window) {
  return decode_from(memory, s,
                     attn::RollingKeyValueCache<float>(s.batch, s.kv_heads, window, s.dim));
}
/// 32 query heads of 128 share these.
Sizes one_query(Index kv_heads, Index keys) { return {1, 32, kv_heads, 1, keys, 128}; }

template <class Element>
auto mask_of(Memory& memory, Index length) {
  return memory.tensor<Element>({1, 1, length, length});
}
auto boolean_of(Memory& memory, Index length) {
  const auto mask = mask_of<std::uint8_t>(memory, length);
  for (Index i = 0; i < length * length; ++i) mask.data()[i] = i % 10 != 3;
  return mask;
}

/// 8 query and 2 key and value heads of 64 over a model_dim of 512.
using Layer = attn::GroupedQueryAttention<float>;
std::shared_ptr<const Layer> layer_of(Memory& memory) {
  attn::AttentionConfig config;
  config.model_dim = 512;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  const auto weights = [&](Index out) {
    const auto weight = memory.tensor<float>({1, 1, out, 512});
    for (Index i = 0; i < weight.shape().size(); ++i) weight.data()[i] /= 16;
    return attn::LinearWeights<float>{weight, nullptr};
  };
  const auto query = weights(512), key = weights(128), value = weights(128), output = weights(512);
  return std::make_shared<const Layer>(config, query, key, value, output);
}
Call layer_forward(Memory& memory, Index tokens) {
  const auto layer = layer_of(memory);
  const auto x = memory.tensor<float>({1, 1, tokens, 512}), out = memory.tensor<float>(x.shape());
  return [=] { layer->forward(x, out, attn::causal()); };
}
Call layer_step(Memory& memory, Index held) {
  const auto layer = layer_of(memory);
  const auto x = memory.tensor<float>({1, 1, 1, 512}), out = memory.tensor<float>(x.shape());
  const auto keys = memory.tensor<float>({1, 2, held + 1, 64});
  const auto values = memory.tensor<float>(keys.shape());
  const auto cache = std::make_shared<attn::KeyValueCache<float>>(keys, values);
  fill(memory, Sizes{1, 8, 2, 1, held, 64}, *cache);
  return [=] {
    layer->step(x, *cache, out, attn::causal());
    cache->truncate(held);
  };
}

Call ragged(Memory& memory, Index sequences, Index length, Index dim) {
  const Tensors<float> x(memory, square(sequences * length, dim));
  const auto starts = std::make_shared<std::vector<std::int64_t>>();
  for (Index s = 0; s <= sequences; ++s) starts->push_back(s * length);
  return [=] { attn::ragged_attention(x.q, x.k, x.v, x.out, *starts, attn::causal()); };
}

Call with_weights(Memory& memory, const Sizes& s) {
  const Tensors<float> x(memory, s);
  attn::AttentionOutputs<float> extra;
  extra.weights = memory.tensor<float>({s.batch, s.heads, s.queries, s.keys});
  return
      [=] { attn::scaled_dot_product_attention(x.q, x.k, x.v, x.out, attn::no_mask(), {}, extra); };
}

attn::AttentionOptions bf16_weights() {
  attn::AttentionOptions options;
  options.allow_bf16_weights = true;
  return options;
}
attn::AttentionOptions softcap() {
  attn::AttentionOptions options;
  options.softcap = 20;
  return options;
}
attn::AttentionOptions dropout() {
  attn::AttentionOptions options;
  options.dropout.probability = 0.1;
  return options;
}
attn::AttentionOptions of_set(attn::InstructionSet set) {
  attn::AttentionOptions options;
  options.instruction_set = set;
  return options;
}

/// One call of a head of 16 with 4 queries and keys: what a call costs by itself.
constexpr Sizes kTiny = {1, 1, 1, 4, 4, 16};

struct Case {
  const char* name;
  Call (*prepare)(Memory& m);
};

constexpr Case kCases[] = {
    {"prefill 128, D 64", [](Memory& m) { return attend(m, square(128, 64)); }},
    {"prefill 512, D 64", [](Memory& m) { return attend(m, square(512, 64)); }},
    {"prefill 1024, D 64", [](Memory& m) { return attend(m, square(1024, 64)); }},
    {"prefill 128, D 128", [](Memory& m) { return attend(m, square(128, 128)); }},
    {"prefill 512, D 128", [](Memory& m) { return attend(m, square(512, 128)); }},
    {"prefill 1024, D 128", [](Memory& m) { return attend(m, square(1024, 128)); }},
    {"causal 128, D 64", [](Memory& m) { return attend(m, square(128, 64), attn::causal()); }},
    {"causal 512, D 64", [](Memory& m) { return attend(m, square(512, 64), attn::causal()); }},
    {"causal 1024, D 64", [](Memory& m) { return attend(m, square(1024, 64), attn::causal()); }},
    {"causal 128, D 128", [](Memory& m) { return attend(m, square(128, 128), attn::causal()); }},
    {"causal 512, D 128", [](Memory& m) { return attend(m, square(512, 128), attn::causal()); }},
    {"causal 1024, D 128", [](Memory& m) { return attend(m, square(1024, 128), attn::causal()); }},
    {"keep_where 128",
     [](Memory& m) { return attend(m, square(128, 64), attn::keep_where(boolean_of(m, 128))); }},
    {"keep_where 1024",
     [](Memory& m) { return attend(m, square(1024, 64), attn::keep_where(boolean_of(m, 1024))); }},
    {"add_bias 128",
     [](Memory& m) { return attend(m, square(128, 64), attn::add_bias(mask_of<float>(m, 128))); }},
    {"add_bias 1024",
     [](Memory& m) {
       return attend(m, square(1024, 64), attn::add_bias(mask_of<float>(m, 1024)));
     }},
    {"add_bias of half 1024",
     [](Memory& m) {
       return attend(m, square(1024, 64), attn::add_bias(mask_of<Eigen::half>(m, 1024)));
     }},
    {"alibi & causal 128",
     [](Memory& m) { return attend(m, square(128, 64), attn::alibi() & attn::causal()); }},
    {"alibi & causal 1024",
     [](Memory& m) { return attend(m, square(1024, 64), attn::alibi() & attn::causal()); }},
    {"window of 128 1024",
     [](Memory& m) { return attend(m, square(1024, 64), attn::sliding_window(127, 0)); }},
    {"key_lengths 700 of 1024",
     [](Memory& m) { return attend(m, square(1024, 64), attn::key_lengths(700)); }},
    {"keep_if 1024",
     [](Memory& m) {
       return attend(m, square(1024, 64), attn::keep_if([](attn::ScorePosition at) {
                       return at.key <= at.query_position;
                     }));
     }},
    {"AnyMask causal 128",
     [](Memory& m) { return attend(m, square(128, 64), attn::AnyMask(attn::causal())); }},
    {"softcap 512",
     [](Memory& m) { return attend(m, square(512, 64), attn::no_mask(), softcap()); }},
    {"dropout 512",
     [](Memory& m) { return attend(m, square(512, 64), attn::no_mask(), dropout()); }},
    {"weights out 512", [](Memory& m) { return with_weights(m, square(512, 64)); }},
    {"double 512", [](Memory& m) { return attend<double>(m, square(512, 64)); }},
    {"half 512", [](Memory& m) { return attend<Eigen::half>(m, square(512, 64)); }},
    {"bfloat16 512", [](Memory& m) { return attend<Eigen::bfloat16>(m, square(512, 64)); }},
    {"bf16 weights allowed 512, D 64",
     [](Memory& m) {
       return attend<Eigen::bfloat16>(m, square(512, 64), attn::no_mask(), bf16_weights());
     }},
    {"bf16 weights allowed 1024, D 128",
     [](Memory& m) {
       return attend<Eigen::bfloat16>(m, square(1024, 128), attn::causal(), bf16_weights());
     }},
    {"generic set 512",
     [](Memory& m) {
       return attend(m, square(512, 64), attn::no_mask(), of_set(attn::InstructionSet::generic));
     }},
    {"32 queries, 8 of 32 heads, 1024",
     [](Memory& m) {
       return attend(m, {1, 32, 8, 32, 1024, 128}, attn::causal_bottom_right());
     }},
    {"64 queries, 8 heads, 8192",
     [](Memory& m) {
       return attend(m, {1, 8, 8, 64, 8192, 64}, attn::causal_bottom_right());
     }},
    {"200 queries, 1 head, 16384",
     [](Memory& m) {
       return attend(m, {1, 1, 1, 200, 16384, 128}, attn::causal_bottom_right());
     }},
    {"decode 71 heads on one, 32k",
     [](Memory& m) {
       return attend(m, {1, 71, 1, 1, 32768, 64});
     }},
    {"decode 128 heads on one, 4k, D 512",
     [](Memory& m) {
       return attend(m, {1, 128, 1, 1, 4096, 512});
     }},
    {"decode MHA 1k", [](Memory& m) { return decode(m, one_query(32, 1024)); }},
    {"decode MHA 4k", [](Memory& m) { return decode(m, one_query(32, 4096)); }},
    {"decode MHA 16k", [](Memory& m) { return decode(m, one_query(32, 16384)); }},
    {"decode GQA-4 1k", [](Memory& m) { return decode(m, one_query(8, 1024)); }},
    {"decode GQA-4 4k", [](Memory& m) { return decode(m, one_query(8, 4096)); }},
    {"decode GQA-4 16k", [](Memory& m) { return decode(m, one_query(8, 16384)); }},
    {"decode MQA 1k", [](Memory& m) { return decode(m, one_query(1, 1024)); }},
    {"decode MQA 4k", [](Memory& m) { return decode(m, one_query(1, 4096)); }},
    {"decode MQA 16k", [](Memory& m) { return decode(m, one_query(1, 16384)); }},
    {"decode GQA-4 4k of half",
     [](Memory& m) { return decode<Eigen::half>(m, one_query(8, 4096)); }},
    {"decode GQA-4 4k, pages of 64",
     [](Memory& m) { return decode_paged(m, one_query(8, 4096), 64); }},
    {"decode MQA 4k, pages of 16",
     [](Memory& m) { return decode_paged(m, one_query(1, 4096), 16); }},
    {"decode GQA-4, window of 1024",
     [](Memory& m) { return decode_rolling(m, one_query(8, 2048), 1024); }},
    {"tiny", [](Memory& m) { return attend(m, kTiny); }},
    {"tiny causal", [](Memory& m) { return attend(m, kTiny, attn::causal()); }},
    {"512 sequences of 16, D 32",
     [](Memory& m) {
       return attend(m, {512, 1, 1, 16, 16, 32});
     }},
    {"512 sequences of 16, D 64",
     [](Memory& m) {
       return attend(m, {512, 1, 1, 16, 16, 64});
     }},
    {"64 ragged sequences of 16", [](Memory& m) { return ragged(m, 64, 16, 64); }},
    {"layer, 128 tokens", [](Memory& m) { return layer_forward(m, 128); }},
    {"layer, step over 256 tokens", [](Memory& m) { return layer_step(m, 256); }},
};

Call ready;

}  // namespace

const Side* attn_side() {
  static constexpr Side kSide = {
      [](int number) {
        return number < static_cast<int>(std::size(kCases)) ? kCases[number].name : nullptr;
      },
      [](int number, char* memory, std::size_t size) {
        Memory pieces(memory, size);
        ready = kCases[number].prepare(pieces);
      },
      [] { ready(); },
      [] { ready = nullptr; },
  };
  return &kSide;
}

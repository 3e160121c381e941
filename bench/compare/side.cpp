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

template <class T = float>
Call decode(Memory& memory, const Sizes& s) {
  const Tensors<T> x(memory, s);
  attn::KeyValueCache<T> cache(x.k, x.v);
  const attn::Tensor4Buffer<T> nothing(Shape4{1, s.kv_heads, 1, s.dim});
  // Fills it without another copy in memory: the tokens are what lies there.
  for (Index i = 0; i < s.keys; ++i) {
    cache.append(attn::Tensor4Buffer<T>(nothing), nothing);
  }
  return [=] { attn::scaled_dot_product_attention(x.q, cache, x.out, attn::causal()); };
}

template <class Cache>
Call decode_from(Memory& memory, const Sizes& s, Cache cache) {
  const Tensors<float> x(memory, s);
  cache.append(x.k, x.v);
  const auto held = std::make_shared<Cache>(std::move(cache));
  return [=] { attn::scaled_dot_product_attention(x.q, *held, x.out, attn::causal()); };
}
Call decode_paged(Memory& memory, const Sizes& s, Index page) {
  return decode_from(memory, s,
                     attn::PagedKeyValueCache<float>(s.keys / page, page, 1, s.kv_heads, s.dim));
}

attn::AttentionConfig layer_config() {
  attn::AttentionConfig config;
  config.model_dim = 512;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  return config;
}

struct Case {
  const char* name;
  Call (*prepare)(Memory& memory);
};

constexpr Case kCases[] = {
    {"prefill D64 S128", [](Memory& m) { return attend(m, square(128, 64)); }},
};

Call prepared;

}  // namespace

const char* case_name(int number) {
  return number < static_cast<int>(std::size(kCases)) ? kCases[number].name : nullptr;
}
void prepare(int number, char* memory, std::size_t size) {
  Memory pieces(memory, size);
  prepared = kCases[number].prepare(pieces);
}
void run() { prepared(); }
void finish() { prepared = nullptr; }

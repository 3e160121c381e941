// bench/peers/attn_peers.cpp - attention behind C functions, for peers.py to load.
#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "attn/attn.hpp"

namespace {

/// A call on fixed memory, and what it keeps between runs: its threads and its scratch.
class Call {
 public:
  virtual ~Call() = default;
  virtual void run() const = 0;
};

struct Sizes {
  std::int64_t batch, heads, kv_heads, queries, keys, dim;
};

template <class T, class M>
class CallOf final : public Call {
 public:
  CallOf(const Sizes& sizes, const M& mask, int threads, const void* q, const void* k,
         const void* v, void* out)
      : q_(static_cast<const T*>(q), {sizes.batch, sizes.heads, sizes.queries, sizes.dim}),
        k_(static_cast<const T*>(k), {sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim}),
        v_(static_cast<const T*>(v), k_.shape()),
        out_(static_cast<T*>(out), q_.shape()),
        mask_(mask) {
    if (threads > 1) {
      pool_ = std::make_unique<attn::ThreadPool>(threads);
      options_.executor = pool_.get();
    }
    options_.allow_bf16_weights = true;  // PyTorch rounds them too
    const std::size_t bytes = attn::attention_workspace_bytes(q_, k_, v_, mask_, options_);
    workspace_.reset(new char[bytes]);
    options_.workspace = {workspace_.get(), bytes};
  }

  void run() const override {
    attn::scaled_dot_product_attention(q_, k_, v_, out_, mask_, options_);
  }

 private:
  attn::Tensor4<const T> q_, k_, v_;
  attn::Tensor4<T> out_;
  M mask_;
  std::unique_ptr<attn::ThreadPool> pool_;
  std::unique_ptr<char[]> workspace_;
  attn::AttentionOptions options_;
};

template <class T>
Call* prepare(bool is_causal, const Sizes& sizes, int threads, const void* q, const void* k,
              const void* v, void* out) {
  if (is_causal) {
    return new CallOf<T, attn::CausalMask>(sizes, attn::causal(), threads, q, k, v, out);
  }
  return new CallOf<T, attn::NoMask>(sizes, attn::no_mask(), threads, q, k, v, out);
}

}  // namespace

// The script's shapes are right: an error in them ends the process, with its message.
extern "C" {

/// A call to run. `sizes`: batch, heads, kv_heads, queries, keys, dim; q and out [batch, heads,
/// queries, dim], k and v [batch, kv_heads, keys, dim], contiguous and of float or bfloat16.
void* attn_peers_prepare(const std::int64_t* sizes, int is_bfloat16, int is_causal, int threads,
                         const void* q, const void* k, const void* v, void* out) noexcept {
  const auto prepare_as = is_bfloat16 ? prepare<Eigen::bfloat16> : prepare<float>;
  return prepare_as(is_causal != 0, {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]},
                    threads, q, k, v, out);
}

void attn_peers_run(const void* call) noexcept { static_cast<const Call*>(call)->run(); }

void attn_peers_release(void* call) noexcept { delete static_cast<Call*>(call); }

const char* attn_peers_instruction_set() noexcept {
  return attn::name_of(attn::active_instruction_set());
}

const char* attn_peers_compiler() noexcept { return __VERSION__; }
}

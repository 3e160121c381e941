// attn/detail/layers/layer_pass.hpp - level 15: one forward pass of an attention layer, stage by
// stage:
//
//   inputs   ->  queries, keys, values          ->  heads    ->  out
//   check        project_inputs, rotate, append     attend       project_output
//
// With a cache, keys and values are appended to it and attention reads it.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/coefficients.hpp"
#include "attn/detail/call/overlap.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/projection/linear_call.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/executor.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {

/// What a layer knows: its sizes, with all defaults filled in, its four projections, and how it
/// normalises the heads of queries and keys.
template <class T>
struct LayerWeights {
  AttentionConfig config;
  LinearWeights<T> query, key, value, output;
  std::optional<RmsNormWeights<T>> query_norm = std::nullopt, key_norm = std::nullopt;
};

/// What is projected: [B, 1, Sq, model_dim], [B|1, 1, Sk, key_input_dim] and
/// [B|1, 1, Sk, value_input_dim]. In self-attention all three are one tensor; in a pass that only
/// reads a cache Sk is 0, and in one that only appends to it Sq is.
template <class T>
struct LayerInputs {
  Tensor4<const T> query, key, value;
  bool is_self = false;
};

/// The keys of a cache once `count` more tokens have been appended to each sequence.
inline KeyValueSource after_append(KeyValueSource source, Index count) {
  source.end = source.end + count;
  source.length += count;
  source.key_shape.length = source.value_shape.length = source.length;
  return source;
}

inline namespace ATTN_ERRORS {

/// One pass. Its activations and scratch are one block of memory: the caller's workspace, or one
/// allocation. Nothing of the caller's is written before project_output.
template <class T>
class LayerPass {
 public:
  using A = AccumulationType<T>;

  /// Checks the inputs. `layer` outlives the pass.
  LayerPass(const FunctionName& function, const LayerWeights<T>& layer,
            const LayerInputs<T>& inputs)
      : shapes_(function), layer_(layer), inputs_(inputs) {
    const AttentionConfig& config = layer.config;
    const Tensor4<const T>&query = inputs.query, &key = inputs.key, &value = inputs.value;
    const char* const query_name = inputs.is_self ? "x" : "query";
    const char* const key_name = inputs.is_self ? "x" : "key";
    const char* const value_name = inputs.is_self ? "x" : "value";
    shapes_.add_input(query_name, TensorRef(query));
    if (!inputs.is_self) {
      shapes_.add_input(key_name, TensorRef(key));
      shapes_.add_input(value_name, TensorRef(value));
    }
    require_dim(query_name, query, "model_dim", config.model_dim);
    require_dim(key_name, key, "key_input_dim", config.key_input_dim);
    require_dim(value_name, value, "value_input_dim", config.value_input_dim);
    shapes_.require(key.batch() == query.batch() || key.batch() == 1,
                    "key must have the batch of query, or 1");
    shapes_.require(value.batch() == query.batch() || value.batch() == 1,
                    "value must have the batch of query, or 1");
    shapes_.require(key.length() == value.length(), "key and value must have the same length");
  }

  /// Checks what will be written.
  void set_outputs(const Tensor4<T>& out, const AttentionOutputs<A>& extra) {
    out_ = out;
    extra_ = extra;
    const Tensor4<const T>& query = inputs_.query;
    add_output("out", out, Shape4{query.batch(), 1, query.length(), layer_.config.model_dim},
               "out must be [batch of query, 1, length of query, model_dim]");
    const Shape4 scores{query.batch(), layer_.config.num_heads, query.length(),
                        inputs_.key.length()};
    if (extra.weights.shape() != Shape4{}) {
      add_output("weights", extra.weights, scores,
                 "weights must be [batch of query, num_heads, length of query, length of key]");
    }
    if (extra.log_sum_exp.shape() != Shape4{}) {
      add_output("log_sum_exp", extra.log_sum_exp,
                 Shape4{scores.batch, scores.heads, scores.length, 1},
                 "log_sum_exp must be [batch of query, num_heads, length of query, 1]");
    }
    for (const LinearWeights<T>* weights :
         {&layer_.query, &layer_.key, &layer_.value, &layer_.output}) {
      require_apart("a weight of the layer", TensorRef(weights->weight));
      require_apart("a bias of the layer", row_of(weights->bias, weights->weight.length()));
    }
    for (const auto* norm : {&layer_.query_norm, &layer_.key_norm}) {
      if (*norm) {
        require_apart("a norm of the layer", row_of((*norm)->gamma, layer_.config.head_dim));
      }
    }
  }
  /// Refuses outputs that overlap what a layer around this one reads.
  void require_apart(const char* name, const TensorRef& other) const {
    const TensorRef outputs[] = {TensorRef(out_), TensorRef(extra_.weights),
                                 TensorRef(extra_.log_sum_exp)};
    const char* const names[] = {"out", "weights", "log_sum_exp"};
    for (int i = 0; i < 3; ++i) {
      if (overlaps(outputs[i], other)) {
        shapes_.raise_shape(std::string(names[i]) + " overlaps " + name + " in memory");
      }
    }
  }
  /// For the rules of a layer around this one.
  const CallShapes& shapes() const { return shapes_; }

  /// Checks the mask and the options, and describes the work. The mask outlives the pass.
  template <class M>
  void prepare(const M& mask, const AttentionOptions& options) {
    describe(KeyValueSource(TensorRef(keys()), TensorRef(values())), nullptr, mask, options);
  }
  /// The same, reading the keys of a cache as it is after the pass has appended to it.
  template <class Cache, class M>
  void prepare_cached(const Cache& cache, const M& mask, const AttentionOptions& options) {
    const Index appended = inputs_.key.length();
    const KeyValueSource source = after_append(cache.source(), appended);
    is_cached_ = true;
    const AttentionConfig& config = layer_.config;
    const Shape4 &k = source.key_shape, &v = source.value_shape;
    shapes_.add_input("cached keys", source.keys, k);
    shapes_.add_input("cached values", source.values, v);
    shapes_.require(k.batch == inputs_.query.batch() || k.batch == 1,
                    "the cache must hold the batch of x, or one sequence");
    shapes_.require(k.heads == config.num_kv_heads && v.heads == config.num_kv_heads,
                    "the cache must have the num_kv_heads of the layer");
    shapes_.require(k.dim == config.head_dim && v.dim == config.value_dim,
                    "the cache must have the head_dim and value_dim of the layer");
    const PerBatch past = source.end - inputs_.query.length();
    describe(source, &past, mask, options);
    require_held_keys(shapes_, *call_, [&](Index b) {
      return cache.first_held_after(cache.batch() == 1 ? 0 : b, appended);
    });
  }
  void require_rotary(const RotaryEmbedding& rotary) const {
    if (rotary.head_dim() != layer_.config.head_dim) {
      shapes_.raise_shape("the rotary embedding must have the head_dim of the layer, " +
                          std::to_string(layer_.config.head_dim) + ", not " +
                          std::to_string(rotary.head_dim()));
    }
  }

  /// The memory that the pass needs, aligned to a cache line.
  std::size_t bytes() const {
    Arena arena;
    take_activations(arena);
    return arena.used() + scratch_bytes();
  }
  void allocate(const FunctionName& query) {
    memory_.emplace(shapes_, options_.workspace, bytes(), query);
    Arena arena(memory_->data());
    const Activations activations = take_activations(arena);
    scratch_ = arena.take<char>(0);
    in_.call[0].out.data = call_->q.data = activations.queries;
    in_.call[1].out.data = activations.keys;
    in_.call[2].out.data = activations.values;
    output_.call[0].x.data = call_->outputs.out.data = activations.heads;
    if (is_cached_) return;
    call_->source.keys.data = activations.keys;
    call_->source.values.data = activations.values;
  }

  void project_inputs() const {
    run(in_);
    if (layer_.query_norm) rms_norm(queries(), *layer_.query_norm, queries(), executor());
    if (layer_.key_norm) rms_norm(keys(), *layer_.key_norm, keys(), executor());
  }
  /// Turns the queries to the positions that the masks see, and the keys to theirs.
  void rotate(const RotaryEmbedding& rotary, const PerBatch& first_key) const {
    rotary.apply(queries(), call_->offset, executor());
    if (inputs_.key.length() > 0) rotary.apply(keys(), first_key, executor());
  }
  /// The projected queries, keys and values, head by head.
  Tensor4<T> queries() const {
    return heads_of(0, inputs_.query, layer_.config.num_heads, layer_.config.head_dim);
  }
  Tensor4<T> keys() const {
    return heads_of(1, inputs_.key, layer_.config.num_kv_heads, layer_.config.head_dim);
  }
  Tensor4<T> values() const {
    return heads_of(2, inputs_.value, layer_.config.num_kv_heads, layer_.config.value_dim);
  }
  /// Reads the keys of a cache that has been appended to.
  template <class M>
  void read_from(const KeyValueSource& source, const M& mask) {
    const TensorRef q = call_->q, heads = call_->outputs.out;
    const PerBatch past = source.end - q.shape.length;
    call_.emplace(describe_call<A>(shapes_, q, source, &past, heads, mask, options_, extra_));
  }
  void attend() const {
    AttentionOptions options = options_;
    options.workspace = Workspace{scratch_, attention_bytes_};
    run_attention(shapes_, *call_, options);
  }
  /// The outputs of all heads, side by side: [B, 1, Sq, num_heads * value_dim].
  Tensor4<T> heads() const {
    const TensorRef& rows = output_.call[0].x;
    return Tensor4<T>(static_cast<T*>(const_cast<void*>(rows.data)), rows.shape, rows.stride);
  }
  void project_output() const { run(output_); }
  /// Who runs the stages.
  Executor* executor() const { return options_.executor; }

 private:
  struct Activations {
    T *queries, *keys, *values, *heads;
  };

  template <class M>
  void describe(const KeyValueSource& source, const PerBatch* past, const M& mask,
                const AttentionOptions& options) {
    executor_.emplace(options.executor);
    options_ = options;
    options_.executor = executor_->get();
    const TensorRef q(queries());
    const TensorRef o(
        bshd(static_cast<T*>(nullptr),
             Shape4{q.shape.batch, q.shape.heads, q.shape.length, layer_.config.value_dim}));
    call_.emplace(describe_call<A>(shapes_, q, source, past, o, mask, options_, extra_));
    attention_bytes_ = workspace_bytes_of<A>(shapes_, q, source, options_);
    const InstructionSet set = options.instruction_set;
    in_.call[0] = linear_call<A>(TensorRef(inputs_.query), layer_.query, rows_of(q), set);
    in_.call[1] =
        linear_call<A>(TensorRef(inputs_.key), layer_.key, rows_of(TensorRef(keys())), set);
    in_.call[2] =
        linear_call<A>(TensorRef(inputs_.value), layer_.value, rows_of(TensorRef(values())), set);
    output_.call[0] = linear_call<A>(rows_of(o), layer_.output, TensorRef(out_), set);
  }

  /// What projection `i` of an input writes, as attention reads it. No memory before allocate().
  Tensor4<T> heads_of(int i, const Tensor4<const T>& input, Index heads, Index dim) const {
    T* const rows = static_cast<T*>(const_cast<void*>(in_.call[i].out.data));
    return bshd(rows, Shape4{input.batch(), heads, input.length(), dim});
  }
  /// The same as the projection writes it.
  static TensorRef rows_of(const TensorRef& heads) {
    const Shape4& s = heads.shape;
    return TensorRef(Tensor4<T>(nullptr, Shape4{s.batch, 1, s.length, s.heads * s.dim}));
  }

  Activations take_activations(Arena& arena) const {
    const auto take = [&](const TensorRef& tensor) { return arena.take<T>(tensor.shape.size()); };
    Activations activations;
    activations.queries = take(in_.call[0].out);
    activations.keys = take(in_.call[1].out);
    activations.values = take(in_.call[2].out);
    activations.heads = take(output_.call[0].x);
    return activations;
  }
  /// The stages run one after the other in the same scratch.
  std::size_t scratch_bytes() const {
    const Index offered = worker_count(executor());
    return (std::max)({in_.bytes(in_.workers(offered)), attention_bytes_,
                       output_.bytes(output_.workers(offered))});
  }
  template <std::size_t kCount>
  void run(const LinearCalls<A, kCount>& products) const {
    products.run(executor(), products.workers(worker_count(executor())), scratch_);
  }

  void require_dim(const char* name, const Tensor4<const T>& tensor, const char* dim_name,
                   Index dim) const {
    if (tensor.heads() == 1 && tensor.dim() == dim) return;
    shapes_.raise_shape(std::string(name) + " must be [batch, 1, length, " + dim_name + "] with " +
                        dim_name + ' ' + std::to_string(dim));
  }
  template <class E>
  void add_output(const char* name, const Tensor4<E>& tensor, const Shape4& shape,
                  const char* rule) {
    const TensorRef output(tensor);
    shapes_.add_output(name, output);
    shapes_.require(output.shape == shape, rule);
  }

  CallShapes shapes_;
  const LayerWeights<T>& layer_;
  LayerInputs<T> inputs_;
  Tensor4<T> out_;
  AttentionOutputs<A> extra_;
  std::optional<SettledExecutor> executor_;
  AttentionOptions options_;  // the caller's, but for the executor
  bool is_cached_ = false;
  std::optional<AttentionCall<A>> call_;
  std::size_t attention_bytes_ = 0;
  LinearCalls<A, 3> in_;
  LinearCalls<A, 1> output_;
  std::optional<WorkMemory> memory_;
  void* scratch_ = nullptr;
};

}  // namespace ATTN_ERRORS
}  // namespace detail
}  // namespace attn

// attn/detail/layers/layer_pass.hpp - level 15: one forward pass of an attention layer, stage by
// stage:
//
//   inputs  ->  queries, keys, values            ->  heads  ->  out
//   check       project_inputs, transform_heads,     attend     project_output
//               append
//
// With a cache, keys and values are appended to it and attention reads it.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <algorithm>
#include <cstddef>
#include <optional>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/check.hpp"
#include "attn/detail/call/parallel.hpp"
#include "attn/detail/call/work_memory.hpp"
#include "attn/detail/layers/layer_arguments.hpp"
#include "attn/detail/layers/layer_weights.hpp"
#include "attn/detail/layers/settled_executor.hpp"
#include "attn/detail/projection/linear_call.hpp"
#include "attn/detail/projection/rotary_positions.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/executor.hpp"
#include "attn/layers/attention_config.hpp"
#include "attn/layers/head_transform.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/rms_norm.hpp"
#include "attn/layers/rotary.hpp"
#include "attn/layers/token_positions.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The keys of a cache once `count` more tokens have been appended to each sequence.
inline KeyValueSource after_append(KeyValueSource source, Index count) {
  source.end = source.end + count;
  source.length += count;
  source.key_shape.length = source.value_shape.length = source.length;
  return source;
}

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
    check_layer_inputs(shapes_, layer, inputs);
  }

  /// Checks what will be written.
  void set_outputs(const LayerOutputs<T>& outputs) {
    outputs_ = outputs;
    check_layer_outputs(shapes_, layer_, inputs_, outputs);
  }
  /// Refuses what will be written if it overlaps `input`, which a layer around this one reads.
  void require_apart(const char* name, const TensorRef& input) const {
    attn::detail::require_apart(shapes_, outputs_, name, input);
  }
  /// For the rules of a layer around this one.
  const CallShapes& shapes() const { return shapes_; }

  /// Checks the mask and the options, and describes the work. The mask outlives the pass.
  void prepare(const ErasedMask<A>& mask, const AttentionOptions& options) {
    describe(keys_and_values(keys(), values()), nullptr, mask, options);
  }
  /// The same, reading the keys of a cache as it is after the pass has appended to it: `source`, to
  /// which sequence b has appended counts[b] tokens.
  template <class Cache>
  void prepare_cached(const Cache& cache, const KeyValueSource& source, const PerBatch& counts,
                      const ErasedMask<A>& mask, const AttentionOptions& options) {
    is_cached_ = true;
    const AttentionConfig& config = layer_.config;
    const Shape4 &k = source.key_shape, &v = source.value_shape;
    shapes_.add_input("cached keys", source.keys, k);
    shapes_.add_input("cached values", source.values, v);
    shapes_.expect(k.batch == inputs_.query.batch() || k.batch == 1,
                   "the cache must hold the batch of x, or one sequence");
    shapes_.expect(k.heads == config.num_kv_heads && v.heads == config.num_kv_heads,
                   "the cache must have the num_kv_heads of the layer");
    shapes_.expect(k.dim == config.head_dim && v.dim == config.value_dim,
                   "the cache must have the head_dim and value_dim of the layer");
    const PerBatch past = source.end - inputs_.query.length();
    describe(source, &past, mask, options);
    require_held_keys(shapes_, *call_, [&](Index b) {
      return cache.first_held_after(cache.batch() == 1 ? 0 : b, counts[b]);
    });
  }
  /// Checks the rotary embedding of a call, which outranks the layer's, and its positions.
  void set_rotary(const CallRotary& call) {
    rotary_ = call;
    if (call.embedding != nullptr) require_rotary(shapes_, *call.embedding, layer_.config.head_dim);
    if (call.embedding == nullptr) rotary_.embedding = layer_.transform.rotary;
    const bool is_self = inputs_.is_self;
    check_call_positions(is_self ? "positions" : "query_positions", call.query,
                         is_self ? "x" : "query", inputs_.query);
    if (!is_self) check_call_positions("key_positions", call.key, "key", inputs_.key);
  }

  /// The memory that the pass needs, aligned to a cache line.
  std::size_t bytes() const {
    Arena arena;
    take_activations(arena);
    return arena.used() + scratch_bytes();
  }
  /// `query`: the function that tells their number. Only here do the stages get their memory.
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

  void project_inputs() const { run(in_); }
  /// Normalises the heads, then turns them to the positions of the call, or queries to those that
  /// the masks see, and keys to `first_key` on.
  void transform_heads(const PerBatch& first_key) const {
    normalize_heads();
    if (rotary_.embedding == nullptr) return;
    turn(queries(), rotary_.query, call_->offset);
    if (inputs_.key.length() > 0) turn(keys(), rotary_.key, first_key);
  }
  /// The same where the last counts[b] tokens alone are real, keys being turned to `first_key` on.
  void transform_real_heads(const PerBatch& first_key, const PerBatch& counts) const {
    normalize_heads();
    if (rotary_.embedding == nullptr) return;
    const Index length = inputs_.query.length();
    for (Index b = 0; b < inputs_.query.batch(); ++b) {
      const Index count = counts[b], first = length - count;
      const auto turn_real = [&](const Tensor4<T>& heads, const TokenPositions& positions,
                                 Index position) {
        const TokenPositions real =
            positions.is_given() ? part_of(positions, b, first, count) : TokenPositions();
        this->turn(heads.slice_batch(b, 1).slice_length(first, count), real, position);
      };
      turn_real(queries(), rotary_.query, call_->offset[b] + first);
      turn_real(keys(), rotary_.key, first_key[b]);
    }
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
  void read_from(const KeyValueSource& source, const ErasedMask<A>& mask) {
    const TensorRef q = call_->q, heads = call_->outputs.out;
    const PerBatch past = source.end - q.shape.length;
    call_.emplace(
        describe_call<A>(shapes_, q, source, &past, heads, mask, options_, outputs_.extra));
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
  void check_call_positions(const char* name, const TokenPositions& positions, const char* tensor,
                            const Tensor4<const T>& tokens) {
    if (!positions.is_given()) return;
    add_positions(shapes_, name, positions);
    if (rotary_.embedding == nullptr) {
      shapes_.raise_option({name,
                            " are given, but neither the call nor the layer has a rotary "
                            "embedding that would turn by them"});
    }
    check_positions(shapes_, name, positions, tensor, tokens.batch(), tokens.length(),
                    rotary_.embedding->sections().size());
    require_apart(name, ref_of(positions));
  }
  void turn(const Tensor4<T>& heads, const TokenPositions& positions, const PerBatch& first) const {
    if (positions.is_given()) {
      rotary_.embedding->apply(heads, positions, executor());
    } else {
      rotary_.embedding->apply(heads, first, executor());
    }
  }
  void normalize_heads() const {
    const HeadTransform<T>& transform = layer_.transform;
    if (transform.query_norm) rms_norm(queries(), *transform.query_norm, queries(), executor());
    if (transform.key_norm) rms_norm(keys(), *transform.key_norm, keys(), executor());
  }

  struct Activations {
    T *queries, *keys, *values, *heads;
  };

  void describe(const KeyValueSource& source, const PerBatch* past, const ErasedMask<A>& mask,
                const AttentionOptions& options) {
    executor_.emplace(options.executor);
    options_ = options;
    options_.executor = executor_->get();
    const TensorRef q(queries());
    const TensorRef o(
        bshd(static_cast<T*>(nullptr),
             Shape4{q.shape.batch, q.shape.heads, q.shape.length, layer_.config.value_dim}));
    shapes_.require_possible("the projected queries", q.shape);
    shapes_.require_possible("the projected keys", keys().shape());
    shapes_.require_possible("the projected values", values().shape());
    shapes_.require_possible("the heads", o.shape);
    call_.emplace(describe_call<A>(shapes_, q, source, past, o, mask, options_, outputs_.extra));
    attention_bytes_ = workspace_bytes_of<A>(shapes_, q, source, options_);
    const InstructionSet set = options.instruction_set;
    in_.call[0] = linear_call<A>(TensorRef(inputs_.query), layer_.query, rows_of(q), set);
    in_.call[1] =
        linear_call<A>(TensorRef(inputs_.key), layer_.key, rows_of(TensorRef(keys())), set);
    in_.call[2] =
        linear_call<A>(TensorRef(inputs_.value), layer_.value, rows_of(TensorRef(values())), set);
    output_.call[0] = linear_call<A>(rows_of(o), layer_.output, TensorRef(outputs_.out), set);
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

  CallShapes shapes_;
  const LayerWeights<T>& layer_;
  LayerInputs<T> inputs_;
  LayerOutputs<T> outputs_;
  CallRotary rotary_;
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

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

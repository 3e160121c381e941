// bench/compare/layers.cpp - linear layers, normalisations, rotary embeddings, attention layers.
#include <algorithm>
#include <optional>

#include "draw.hpp"

namespace compare {
namespace {

using attn::RotaryEmbedding;
using attn::RotaryScaling;

RotaryEmbedding draw_rotary(Draw& draw, Index head_dim) {
  const auto pairing = draw.of({attn::RotaryPairing::half_split, attn::RotaryPairing::interleaved});
  const double base = draw.of({10000.0, 10000.0, 500000.0, 100.0});
  attn::RotaryOptions options;
  if (draw.one_in(3)) options.rotary_dim = 2 * draw.between(1, head_dim / 2);
  switch (draw.below(8)) {
    case 0:
      options.scaling = RotaryScaling::linear(4);
      break;
    case 1:
      options.scaling = RotaryScaling::dynamic_ntk(2, 2048, 5000);
      break;
    case 2:
      options.scaling = RotaryScaling::yarn(8, 4096);
      break;
    case 3:
      options.scaling = RotaryScaling::llama3(8, 8192);
      break;
    default:
      break;
  }
  return RotaryEmbedding(head_dim, pairing, base, options);
}

/// The weights of a linear layer: [1, 1, out, in] of any strides.
struct Weights {
  Tensor weight, bias;

  Weights() = default;
  Weights(Draw& draw, Element element, Index out, Index in, bool has_bias)
      : weight(draw_tensor(draw, element, {1, 1, out, in}, draw_layout(draw))) {
    if (has_bias) bias = draw_tensor(draw, element, {1, 1, 1, out}, Layout::contiguous);
  }
  template <class T>
  attn::LinearWeights<T> view() {
    return {weight.read<T>(), bias.is_given() ? bias.read<T>().data() : nullptr};
  }
};

attn::AttentionConfig draw_config(Draw& draw) {
  attn::AttentionConfig config;
  config.num_kv_heads = draw.of({1, 1, 2, 4});
  config.num_heads = config.num_kv_heads * draw.of({1, 1, 2, 4});
  config.head_dim = 2 * draw.between(1, draw.one_in(2) ? 8 : 40);
  config.model_dim = draw.one_in(3) ? draw.between(1, 100) : config.num_heads * config.head_dim;
  if (draw.one_in(4)) config.value_dim = draw.between(1, 40);
  config.bias = draw.one_in(2);
  return config;
}

/// A layer of any class, over weights of its own or drawn ones, which `memory` then holds.
template <class T>
attn::GroupedQueryAttention<T> draw_layer(Draw& draw, const attn::AttentionConfig& config,
                                          Weights (&memory)[4]) {
  const std::uint64_t seed = draw.bits();
  const auto initialization =
      draw.of({attn::Initialization::linear_uniform, attn::Initialization::xavier_uniform});
  if (draw.one_in(2)) {
    if (config.num_kv_heads == config.num_heads) {
      return attn::MultiHeadAttention<T>(config, seed, initialization);
    }
    if (config.num_kv_heads == 1) {
      return attn::MultiQueryAttention<T>(config, seed, initialization);
    }
    return attn::GroupedQueryAttention<T>(config, seed, initialization);
  }
  const Index value_dim = config.value_dim == 0 ? config.head_dim : config.value_dim;
  const Index key_in = config.key_input_dim == 0 ? config.model_dim : config.key_input_dim;
  const Index value_in = config.value_input_dim == 0 ? config.model_dim : config.value_input_dim;
  const Index out[] = {config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim,
                       config.num_kv_heads * value_dim, config.model_dim};
  const Index in[] = {config.model_dim, key_in, value_in, config.num_heads * value_dim};
  for (int i = 0; i < 4; ++i) {
    memory[i] = Weights(draw, element_of<T>(), out[i], in[i], draw.one_in(2));
  }
  return attn::GroupedQueryAttention<T>(config, memory[0].view<T>(), memory[1].view<T>(),
                                        memory[2].view<T>(), memory[3].view<T>());
}

void say_config(const attn::AttentionConfig& config, Element element, Line& line) {
  line.say(std::string(name_of(element)) + " model " + std::to_string(config.model_dim) + " H" +
           std::to_string(config.num_heads) + "/" + std::to_string(config.num_kv_heads) + " D" +
           std::to_string(config.head_dim) + "/" + std::to_string(config.value_dim));
}

Index draw_tokens(Draw& draw) {
  return draw.one_in(6) ? draw.between(60, 200) : draw.one_in(3) ? 1 : draw.below(40);
}

template <class T>
void draw_norms(Draw& draw, attn::GroupedQueryAttention<T>& layer, Tensor& gammas) {
  if (!draw.one_in(4)) return;
  const Index dim = layer.config().head_dim;
  gammas = draw_tensor(draw, element_of<T>(), {1, 1, 2, dim}, Layout::contiguous);
  const T* const gamma = gammas.read<T>().data();
  layer.set_query_key_norm({gamma, 1e-6}, {gamma + dim, 1e-5});
}

/// The sizes of one forward pass.
struct Pass {
  Index batch, queries, keys;
  bool is_cross;
};
Pass draw_pass(Draw& draw) {
  Pass pass;
  pass.batch = draw.of({1, 1, 2, 3});
  pass.queries = draw_tokens(draw);
  pass.is_cross = draw.one_in(3);
  pass.keys = pass.is_cross ? draw_tokens(draw) : pass.queries;
  return pass;
}

/// Steps over one cache.
template <class T, class Cache>
void step(Draw& draw, attn::GroupedQueryAttention<T>& layer, Cache& cache,
          const std::optional<RotaryEmbedding>& rotary, Index batch, Line& line) {
  const RotaryEmbedding* const turned = rotary ? &*rotary : nullptr;
  const Index rounds = draw.between(1, 4);
  for (Index round = 0; round < rounds; ++round) {
    const Index tokens = round == 0 ? draw.between(1, 50) : draw.of({1, 1, 1, 2, 7, 20});
    const Index kind = round == 0 ? 0 : draw.below(6);
    const Element element = element_of<T>();
    const Index model_dim = layer.config().model_dim;
    const Index key_in = layer.config().key_input_dim, value_in = layer.config().value_input_dim;
    Tensor x = draw_tensor(draw, element, {batch, 1, tokens, model_dim});
    Tensor out = draw_result(draw, element, {batch, 1, tokens, model_dim});
    const Index after = cache.longest_length() + (kind == 1 ? 0 : tokens);
    Options options;
    const Shape4 scores{batch, layer.config().num_heads, tokens, after};
    line.say("; " +
             std::string(kind == 1   ? "attend "
                         : kind == 2 ? "append "
                                     : "step ") +
             std::to_string(tokens));
    options.draw(draw, scores, false, line);
    Masks masks;
    const attn::AnyMask mask = masks.draw(draw, scores, options, Masks::Source::cache, line);
    const bool has_workspace = draw.one_in(3);
    try {
      if (kind == 1) {
        layer.attend(x.read<T>(), cache, out.view<T>(), mask, options.value, turned);
      } else if (kind == 2) {
        Tensor key = draw_tensor(draw, element, {batch, 1, tokens, key_in});
        Tensor value = draw_tensor(draw, element, {batch, 1, tokens, value_in});
        layer.append(key.read<T>(), value.read<T>(), cache, options.value, turned);
      } else {
        if (has_workspace) {
          options.set_workspace(
              layer.step_workspace_bytes(x.read<T>(), cache, mask, options.value));
        }
        layer.step(x.read<T>(), cache, out.view<T>(), mask, options.value, turned);
      }
    } catch (const attn::ShapeError&) {
      line.say("(ShapeError)");
    } catch (const attn::OptionError&) {
      line.say("(OptionError)");
    }
    out.add_to(line.hash);
    for (const Index length : cache.lengths()) line.hash.add(length);
  }
}

}  // namespace

void call_linear(Draw& draw, Line& line) {
  const std::vector<Element> elements = draw_elements(draw, 3);
  const Index batch = draw.between(1, 3);
  const Index tokens = draw.one_in(4) ? draw.between(16, 200) : draw.below(20);
  const Index in = draw.one_in(4)   ? draw.between(0, 9)
                   : draw.one_in(4) ? draw.of({511, 512, 513, 1100})
                                    : draw.between(10, 300);
  const Index out_dim = draw.one_in(4) ? draw.between(1, 9) : draw.between(10, 300);
  line.say(std::string(name_of(elements[0])) + "/" + name_of(elements[1]) + "->" +
           name_of(elements[2]) + " " + std::to_string(batch) + "x" + std::to_string(tokens) + " " +
           std::to_string(in) + "->" + std::to_string(out_dim));
  Weights weights(draw, elements[1], out_dim, in, draw.one_in(2));
  Tensor x = draw_tensor(draw, elements[0], {batch, 1, tokens, in});
  Tensor out = draw_result(draw, elements[2], {batch, 1, tokens, out_dim});
  attn::LinearOptions options;
  options.executor = draw_executor(draw);
  options.instruction_set = draw_instruction_set(draw);
  visit(elements[0], [&](auto* tx) {
    visit(elements[1], [&](auto* tw) {
      visit(elements[2], [&](auto* to) {
        attn::linear(x.read<Pointee<decltype(tx)>>(), weights.view<Pointee<decltype(tw)>>(),
                     out.view<Pointee<decltype(to)>>(), options);
      });
    });
  });
  out.add_to(line.hash);
}

void call_norm(Draw& draw, Line& line) {
  const Element element = draw_element(draw);
  const Shape4 shape{draw.between(1, 2), draw.between(1, 2), draw.below(20),
                     draw.one_in(8) ? 0 : draw.between(1, 130)};
  const bool is_rms = draw.one_in(2), is_mixed = draw.one_in(3), is_in_place = draw.one_in(4);
  line.say(std::string(is_rms ? "rms " : "layer ") + name_of(element) +
           (is_mixed      ? " -> f32"
            : is_in_place ? " in place"
                          : "") +
           " D" + std::to_string(shape.dim));
  Tensor x = draw_tensor(draw, element, shape, draw_layout(draw));
  Tensor out = draw_result(draw, is_mixed ? Element::f32 : element, shape);
  Tensor gamma, beta;
  if (draw.one_in(2)) gamma = draw_tensor(draw, element, {1, 1, 1, shape.dim}, Layout::contiguous);
  if (draw.one_in(2)) beta = draw_tensor(draw, element, {1, 1, 1, shape.dim}, Layout::contiguous);
  const double epsilon = draw.of({1e-5, 1e-6, 0.0, 1e-3});
  attn::Executor* const executor = draw_executor(draw);
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* const factors = gamma.is_given() ? gamma.read<T>().data() : nullptr;
    const T* const summands = beta.is_given() ? beta.read<T>().data() : nullptr;
    const auto run = [&](const auto& to) {
      if (is_rms) {
        attn::rms_norm(x.read<T>(), attn::RmsNormWeights<T>{factors, epsilon}, to, executor);
      } else {
        attn::layer_norm(x.read<T>(), attn::LayerNormWeights<T>{factors, summands, epsilon}, to,
                         executor);
      }
    };
    if (is_mixed) return run(out.view<float>());
    return run(is_in_place ? x.view<T>() : out.view<T>());
  });
  x.add_to(line.hash);
  out.add_to(line.hash);
}

void call_rotary(Draw& draw, Line& line) {
  const Element element = draw_element(draw);
  const Shape4 shape{draw.between(1, 3), draw.between(1, 3), draw.below(50),
                     2 * draw.between(1, 64)};
  Tensor x = draw_tensor(draw, element, shape, draw_layout(draw));
  attn::Executor* const executor = draw_executor(draw);
  std::vector<std::int64_t> first;
  for (Index b = 0; b < shape.batch; ++b) first.push_back(draw.between(-100, 5000));
  std::vector<std::int32_t> positions;
  for (Index i = 0; i < shape.batch * shape.length; ++i) {
    positions.push_back(static_cast<std::int32_t>(draw.between(0, 3000)));
  }
  const bool has_positions = draw.one_in(3), has_tables = draw.one_in(4);
  line.say(std::string(name_of(element)) + " D" + std::to_string(shape.dim) +
           (has_tables      ? " tables"
            : has_positions ? " positions"
                            : " first " + std::to_string(first[0])));
  Tensor cosines = draw_tensor(draw, Element::f32, {1, 1, 80, shape.dim / 2}, draw_layout(draw));
  Tensor sines = draw_tensor(draw, Element::f32, {1, 1, 80, shape.dim / 2}, draw_layout(draw));
  const RotaryEmbedding rotary =
      has_tables ? RotaryEmbedding::from_tables(shape.dim, attn::RotaryPairing::half_split,
                                                cosines.read<float>(), sines.read<float>())
                 : draw_rotary(draw, shape.dim);
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    if (has_tables) {
      rotary.apply(x.view<T>(), 7, executor);
    } else if (has_positions) {
      const attn::Tensor4<const std::int32_t> at(positions.data(),
                                                 {shape.batch, 1, shape.length, 1});
      rotary.apply(x.view<T>(), at, executor);
    } else {
      rotary.apply(x.view<T>(), first, executor);
    }
  });
  x.add_to(line.hash);
  for (const double frequency : rotary.frequencies()) line.hash.add_element(frequency);
  line.hash.add_element(rotary.attention_factor());
}

void call_layer(Draw& draw, Line& line) {
  const Element element = draw_element(draw);
  const Pass pass = draw_pass(draw);
  attn::AttentionConfig config = draw_config(draw);
  if (pass.is_cross && draw.one_in(2)) config.key_input_dim = draw.between(1, 50);
  if (pass.is_cross && draw.one_in(2)) config.value_input_dim = draw.between(1, 50);
  say_config(config, element, line);
  line.say((pass.is_cross ? "cross B" : "self B") + std::to_string(pass.batch) + " S" +
           std::to_string(pass.queries) + "/" + std::to_string(pass.keys));
  const Shape4 scores{pass.batch, config.num_heads, pass.queries, pass.keys};
  Options options;
  options.draw(draw, scores, true, line);
  Masks masks;
  const attn::AnyMask mask = masks.draw(draw, scores, options, Masks::Source::tensors, line);
  const bool has_workspace = draw.one_in(3), has_rotary = !pass.is_cross && draw.one_in(3);
  const bool has_weights = draw.one_in(4), has_sums = draw.one_in(4);
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    using A = attn::AccumulationType<T>;
    Weights memory[4];
    attn::GroupedQueryAttention<T> layer = draw_layer<T>(draw, config, memory);
    Tensor gammas;
    draw_norms(draw, layer, gammas);
    const attn::AttentionConfig& sizes = layer.config();
    Tensor query = draw_tensor(draw, element, {pass.batch, 1, pass.queries, sizes.model_dim});
    Tensor key = draw_tensor(draw, element, {pass.batch, 1, pass.keys, sizes.key_input_dim});
    Tensor value = draw_tensor(draw, element, {pass.batch, 1, pass.keys, sizes.value_input_dim});
    Tensor out = draw_result(draw, element, query.shape());
    Tensor weights, sums;
    attn::AttentionOutputs<A> extra;
    if (has_weights) {
      weights = draw_result(draw, element_of<A>(), scores);
      extra.weights = weights.view<A>();
    }
    if (has_sums) {
      sums = draw_result(draw, element_of<A>(), {scores.batch, scores.heads, scores.length, 1});
      extra.log_sum_exp = sums.view<A>();
    }
    if (pass.is_cross) {
      const auto q = query.read<T>(), k = key.read<T>(), v = value.read<T>();
      if (has_workspace) {
        options.set_workspace(layer.workspace_bytes(q, k, v, mask, options.value));
      }
      layer.forward(q, k, v, out.view<T>(), mask, options.value, extra);
    } else {
      std::optional<RotaryEmbedding> rotary;
      if (has_rotary) rotary = draw_rotary(draw, sizes.head_dim);
      if (has_workspace) {
        options.set_workspace(layer.workspace_bytes(query.read<T>(), mask, options.value));
      }
      layer.forward(query.read<T>(), out.view<T>(), mask, options.value, extra,
                    rotary ? &*rotary : nullptr);
    }
    out.add_to(line.hash);
    weights.add_to(line.hash);
    sums.add_to(line.hash);
  });
}

void call_layer_cache(Draw& draw, Line& line) {
  const Element element = draw_element(draw);
  const attn::AttentionConfig config = draw_config(draw);
  const Index kind = draw.below(3), batch = draw.of({1, 1, 2, 3});
  const bool is_narrow = element == Element::f32 && draw.one_in(2);
  say_config(config, element, line);
  line.say("B" + std::to_string(batch));
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    Weights memory[4];
    attn::GroupedQueryAttention<T> layer = draw_layer<T>(draw, config, memory);
    Tensor gammas;
    draw_norms(draw, layer, gammas);
    const Index heads = layer.config().num_kv_heads;
    const Index key_dim = layer.config().head_dim, value_dim = layer.config().value_dim;
    std::optional<RotaryEmbedding> rotary;
    if (draw.one_in(2)) rotary = draw_rotary(draw, key_dim);
    if constexpr (std::is_same_v<T, float>) {
      if (is_narrow) {
        line.say("contiguous bf16");
        attn::KeyValueCache<Eigen::bfloat16> cache(batch, heads, 120, key_dim, value_dim);
        return step(draw, layer, cache, rotary, batch, line);
      }
    }
    if (kind == 0) {
      line.say("contiguous");
      attn::KeyValueCache<T> cache(batch, heads, 120, key_dim, value_dim);
      step(draw, layer, cache, rotary, batch, line);
    } else if (kind == 1) {
      line.say("rolling");
      attn::RollingKeyValueCache<T> cache(batch, heads, 16, key_dim, value_dim, 8);
      step(draw, layer, cache, rotary, batch, line);
    } else {
      line.say("paged");
      attn::PagedKeyValueCache<T> cache(batch * 16, 8, batch, heads, key_dim, value_dim);
      step(draw, layer, cache, rotary, batch, line);
    }
  });
}

void call_block(Draw& draw, Line& line) {
  const Element element = draw_element(draw);
  const Pass pass = draw_pass(draw);
  const attn::AttentionConfig config = draw_config(draw);
  const auto mode = draw.of({attn::BlockMode::evaluation, attn::BlockMode::training});
  const double dropout = draw.of({0.1, 0.1, 0.5, 0.0});
  const bool has_norm = draw.one_in(2), has_workspace = draw.one_in(3);
  say_config(config, element, line);
  line.say(std::string(mode == attn::BlockMode::training ? "training" : "evaluation") +
           (pass.is_cross ? " cross B" : " self B") + std::to_string(pass.batch) + " S" +
           std::to_string(pass.queries) + "/" + std::to_string(pass.keys));
  const Shape4 scores{pass.batch, config.num_heads, pass.queries, pass.keys};
  Options options;
  options.draw(draw, scores, true, line);
  options.value.dropout.probability = 0;  // the block has its own
  Masks masks;
  const attn::AnyMask mask = masks.draw(draw, scores, options, Masks::Source::tensors, line);
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    Weights memory[4];
    const attn::GroupedQueryAttention<T> layer = draw_layer<T>(draw, config, memory);
    Tensor norm = draw_tensor(draw, element, {1, 1, 2, config.model_dim}, Layout::contiguous);
    const T* const gamma = norm.read<T>().data();
    attn::LayerNormWeights<T> norm_weights;
    if (has_norm) norm_weights = {gamma, gamma + config.model_dim, 1e-5};
    const attn::AttentionBlock<T> block(layer, dropout, norm_weights);
    Tensor query = draw_tensor(draw, element, {pass.batch, 1, pass.queries, config.model_dim});
    Tensor key = draw_tensor(draw, element, {pass.batch, 1, pass.keys, config.model_dim});
    Tensor value = draw_tensor(draw, element, {pass.batch, 1, pass.keys, config.model_dim});
    Tensor out = draw_result(draw, element, query.shape());
    const auto q = query.read<T>(), k = key.read<T>(), v = value.read<T>();
    if (pass.is_cross) {
      if (has_workspace) {
        options.set_workspace(layer.workspace_bytes(q, k, v, mask, options.value));
      }
      block.forward(q, k, v, out.view<T>(), mask, options.value, {}, mode);
    } else {
      if (has_workspace) {
        options.set_workspace(layer.workspace_bytes(q, mask, options.value));
      }
      block.forward(q, out.view<T>(), mask, options.value, {}, mode);
    }
    out.add_to(line.hash);
  });
}

}  // namespace compare

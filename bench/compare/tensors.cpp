// bench/compare/tensors.cpp - calls over plain tensors.
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "draw.hpp"

namespace compare {
namespace {

/// q, k and v of one call.
struct Inputs {
  Sizes sizes;
  Tensor q, k, v;

  Inputs(Draw& draw, const std::vector<Element>& elements, Line& line) : sizes(draw_sizes(draw)) {
    line.say(std::string(name_of(elements[0])) + "/" + name_of(elements[1]) + "/" +
             name_of(elements[2]));
    line.say(sizes.text());
    Shape4 key_shape = sizes.k(), value_shape = sizes.v();
    if (draw.one_in(8)) key_shape.batch = 1;
    if (draw.one_in(8)) value_shape.batch = 1;
    q = draw_tensor(draw, elements[0], sizes.q());
    k = draw_tensor(draw, elements[1], key_shape);
    v = draw_tensor(draw, elements[2], value_shape);
  }

  /// f(q, k, v): the views.
  template <class F>
  void with_views(const F& f) {
    visit(q.type(), [&](auto* tq) {
      visit(k.type(), [&](auto* tk) {
        visit(v.type(), [&](auto* tv) {
          f(q.read<Pointee<decltype(tq)>>(), k.read<Pointee<decltype(tk)>>(),
            v.read<Pointee<decltype(tv)>>());
        });
      });
    });
  }
  /// The same for those that draw_few_elements draws; each mixture costs its time to compile.
  template <class F>
  void with_few_views(const F& f) {
    visit(q.type(), [&](auto* type) {
      using T = Pointee<decltype(type)>;
      if (k.type() == v.type()) {
        f(q.read<T>(), k.read<T>(), v.read<T>());
      } else {
        f(q.read<T>(), k.read<Eigen::bfloat16>(), v.read<Eigen::half>());
      }
    });
  }
};

template <class T>
using ValueOf = typename T::Value;

std::vector<Element> draw_few_elements(Draw& draw) {
  const Element element = draw_element(draw);
  if (draw.one_in(4)) return {element, Element::bf16, Element::f16};
  return {element, element, element};
}

attn::Want draw_want(Draw& draw) {
  return draw.of({attn::Want::output, attn::Want::weights, attn::Want::log_sum_exp,
                  attn::Want::weights | attn::Want::log_sum_exp});
}

/// The sign of a NaN is up to the compiler, and printed.
std::string without_nan_signs(std::string text) {
  for (std::size_t at = 0; (at = text.find("-nan", at)) != std::string::npos;) text[at] = ' ';
  return text;
}

template <class Result>
void add_result(Hash& hash, const Result& result) {
  hash.add_view(result.output);
  hash.add_view(result.weights);
  hash.add_view(result.log_sum_exp);
}

}  // namespace

void call_tensors(Draw& draw, Line& line) {
  const std::vector<Element> elements = draw_elements(draw, 4);
  Inputs in(draw, elements, line);
  Tensor out = draw_result(draw, elements[3], in.sizes.out());
  line.say(std::string("-> ") + name_of(elements[3]));
  bool is_double = false;
  for (const Element element : elements) is_double = is_double || element == Element::f64;
  const Element sums = is_double ? Element::f64 : Element::f32;
  Tensor weights, log_sum_exp;
  if (draw.one_in(4)) weights = draw_result(draw, sums, in.sizes.scores());
  if (draw.one_in(4)) log_sum_exp = draw_result(draw, sums, in.sizes.sums());
  if (weights.is_given()) line.say("weights");
  if (log_sum_exp.is_given()) line.say("lse");

  Options options;
  options.draw(draw, in.sizes.scores(), true, line);
  Masks masks;
  const attn::AnyMask mask =
      masks.draw(draw, in.sizes.scores(), options, Masks::Source::tensors, line);
  const bool has_workspace = draw.one_in(3);
  in.with_views([&](const auto& q, const auto& k, const auto& v) {
    if (has_workspace) {
      options.set_workspace(attn::attention_workspace_bytes(q, k, v, mask, options.value));
    }
    visit(out.type(), [&](auto* type) {
      using O = Pointee<decltype(type)>;
      using A = attn::AccumulationType<ValueOf<std::decay_t<decltype(q)>>,
                                       ValueOf<std::decay_t<decltype(k)>>,
                                       ValueOf<std::decay_t<decltype(v)>>, O>;
      attn::AttentionOutputs<A> extra;
      if (weights.is_given()) extra.weights = weights.view<A>();
      if (log_sum_exp.is_given()) extra.log_sum_exp = log_sum_exp.view<A>();
      attn::scaled_dot_product_attention(q, k, v, out.view<O>(), mask, options.value, extra);
    });
  });
  out.add_to(line.hash);
  weights.add_to(line.hash);
  log_sum_exp.add_to(line.hash);
}

void call_returning(Draw& draw, Line& line) {
  Inputs in(draw, draw_few_elements(draw), line);
  Options options;
  options.draw(draw, in.sizes.scores(), true, line);
  Masks masks;
  const attn::AnyMask mask =
      masks.draw(draw, in.sizes.scores(), options, Masks::Source::tensors, line);
  const attn::Want want = draw_want(draw);
  in.with_few_views([&](const auto& q, const auto& k, const auto& v) {
    add_result(line.hash, attn::scaled_dot_product_attention(q, k, v, mask, options.value, want));
  });
}

// Masks of their own types, as most programs write them.
void call_plain_masks(Draw& draw, Line& line) {
  const Element element = draw.of({Element::f32, Element::f32, Element::f64, Element::bf16});
  Inputs in(draw, {element, element, element}, line);
  Options options;
  options.draw(draw, in.sizes.scores(), false, line);
  const attn::Want want = draw_want(draw);
  Masks masks;
  Tensor& boolean = masks.draw_boolean(draw, in.sizes.scores());
  Tensor& bias = masks.draw_bias(draw, in.sizes.scores());
  const Index step = draw.between(2, 5);
  const Index kind = draw.below(12);
  line.say("plain mask " + std::to_string(kind));
  const auto run = [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const auto attend = [&](const auto& mask) {
      add_result(line.hash,
                 attn::scaled_dot_product_attention(in.q.read<T>(), in.k.read<T>(), in.v.read<T>(),
                                                    mask, options.value, want));
    };
    const auto keep = attn::keep_if(
        [step](attn::ScorePosition at) { return (at.key + at.query + at.head) % step != 0; });
    const auto modify = attn::modify_score([step](auto score, attn::ScorePosition at) {
      return score * decltype(score)(0.25) + static_cast<decltype(score)>(at.key % step);
    });
    switch (kind) {
      case 0:
        return attend(attn::no_mask());
      case 1:
        return attend(attn::causal_bottom_right());
      case 2:
        return attend(attn::causal_top_left() & attn::sliding_window(step * 10, 0));
      case 3:
        return attend(attn::key_lengths(in.sizes.keys / step));
      case 4:
        return attend(attn::keep_where(boolean.view<bool>()));
      case 5:
        return attend(attn::alibi() & attn::causal_bottom_right());
      case 6:
        return attend(keep);
      case 7:
        return attend(modify);
      case 8:
        return attend(modify & attn::causal_bottom_right() & keep);
      case 9:
        return attend(attn::drop_where(boolean.view<std::uint8_t>()) & modify);
      default:
        return visit(bias.type(), [&](auto* bias_type) {
          const auto biased = attn::add_bias(bias.view<Pointee<decltype(bias_type)>>());
          return kind == 10 ? attend(biased) : attend(biased & attn::causal_bottom_right());
        });
    }
  };
  switch (element) {
    case Element::f64:
      return run(static_cast<double*>(nullptr));
    case Element::bf16:
      return run(static_cast<Eigen::bfloat16*>(nullptr));
    default:
      return run(static_cast<float*>(nullptr));
  }
}

void call_inspect(Draw& draw, Line& line) {
  Inputs in(draw, draw_few_elements(draw), line);
  Options options;
  options.draw(draw, in.sizes.scores(), true, line);
  Masks masks;
  const attn::AnyMask mask =
      masks.draw(draw, in.sizes.scores(), options, Masks::Source::tensors, line);
  const Index batch = draw.below(in.sizes.batch), head = draw.below(in.sizes.query_heads);
  in.with_few_views([&](const auto& q, const auto& k, const auto& v) {
    const auto seen = attn::inspect_attention(q, k, v, batch, head, mask, options.value);
    for (const auto* const step : {&seen.raw, &seen.scaled, &seen.softcapped, &seen.biased,
                                   &seen.masked, &seen.weights, &seen.output}) {
      line.hash.add_view(step->values);
      line.hash.add_element(step->min);
      line.hash.add_element(step->max);
      line.hash.add(step->not_finite);
    }
    line.hash.add_view(seen.log_sum_exp);
    line.hash.add_element(seen.scale);
    line.hash.add_element(seen.softcap);
    line.hash.add_element(seen.sink);
    line.hash.add_element(seen.dropout);
    for (const Index number :
         {seen.batch, seen.head, seen.key_head, seen.value_head, seen.query_offset}) {
      line.hash.add(number);
    }
    for (const Index count : seen.masked_keys) line.hash.add(count);
    for (const auto sum : seen.row_sums) line.hash.add_element(sum);
    line.hash.add(without_nan_signs(seen.to_string()));
  });
}

void call_merge(Draw& draw, Line& line) {
  const Element out = draw_element(draw), sums = draw.of({Element::f32, Element::f64});
  const Shape4 shape{draw.between(1, 3), draw.between(1, 4), draw.below(40), draw_dim(draw)};
  const Shape4 rows{shape.batch, shape.heads, shape.length, 1};
  line.say(std::string(name_of(out)) + "/" + name_of(sums));
  Tensor out_a = draw_tensor(draw, out, shape), out_b = draw_tensor(draw, out, shape);
  Tensor lse_a = draw_tensor(draw, sums, rows), lse_b = draw_tensor(draw, sums, rows);
  if (draw.one_in(2)) lse_a.scatter(draw, 5, {-std::numeric_limits<double>::infinity()});
  if (draw.one_in(2)) lse_b.scatter(draw, 5, {-std::numeric_limits<double>::infinity()});
  Tensor merged = draw_result(draw, out, shape), lse = draw_result(draw, sums, rows);
  visit(out, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const auto merge = [&](auto* sum_type) {
      using L = Pointee<decltype(sum_type)>;
      attn::merge_attention(out_a.read<T>(), lse_a.read<L>(), out_b.read<T>(), lse_b.read<L>(),
                            merged.view<T>(), lse.view<L>());
    };
    if (sums == Element::f64) return merge(static_cast<double*>(nullptr));
    return merge(static_cast<float*>(nullptr));
  });
  merged.add_to(line.hash);
  lse.add_to(line.hash);
}

void call_text(Draw& draw, Line& line) {
  if (draw.one_in(3)) {
    line.say("costs");
    attn::AttentionConfig config;
    config.num_kv_heads = draw.of({1, 2, 4});
    config.num_heads = config.num_kv_heads * draw.of({1, 2, 4});
    config.model_dim = config.num_heads * draw.between(1, 64);
    line.hash.add(attn::attention_costs(config, draw.below(5000)).to_string());
    return;
  }
  line.say("heatmap");
  const Index rows = draw.of({1, 3, 6, 16, 40, 150}), columns = draw.of({1, 5, 6, 20, 140});
  Tensor weights(Element::f32, {1, 1, rows, columns});
  weights.fill(draw);
  const attn::Tensor4<float> view = weights.view<float>();
  attn::HeatmapOptions options;
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) view(0, 0, i, j) = (view(0, 0, i, j) + 1) / 2;
    if (rows < 10) options.query_labels.push_back("token " + std::to_string(i));
  }
  if (draw.one_in(2)) options.title = "a < b & \"c\"";
  line.hash.add(attn::heatmap_svg(view.matrix(0, 0), options));
}

}  // namespace compare

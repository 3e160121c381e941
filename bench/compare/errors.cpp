// bench/compare/errors.cpp - calls that are wrong. What is compared is the class of the error, and
// that nothing was written.
#include <iterator>
#include <limits>
#include <vector>

#include "draw.hpp"

namespace compare {
namespace {

struct Wrong {
  const char* name;
  void (*call)(Draw& draw, Tensor& out);
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using View = attn::Tensor4<const float>;

/// q [2, 4, 5, 8], k [2, 2, 7, 8], v [2, 2, 7, 6], after `change` made one of them wrong.
template <class F>
void attend(Tensor& out, const F& change) {
  struct {
    Shape4 q{2, 4, 5, 8}, k{2, 2, 7, 8}, v{2, 2, 7, 6}, out{2, 4, 5, 6};
    attn::AttentionOptions options;
    attn::AnyMask mask;
    attn::AttentionOutputs<float> extra;
  } call;
  static const std::vector<float> input(1000, 0.5f);
  change(call);
  attn::scaled_dot_product_attention(View(input.data(), call.q), View(input.data(), call.k),
                                     View(input.data(), call.v),
                                     attn::Tensor4<float>(out.view<float>().data(), call.out),
                                     call.mask, call.options, call.extra);
}

/// One number each of more batches than there are.
const std::vector<std::int64_t> kThree = {1, 2, 3};

constexpr Wrong kWrong[] = {
    {"batch of k", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.k.batch = 3; }); }},
    {"batch of v", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.v.batch = 3; }); }},
    {"heads of k", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.k.heads = 3; }); }},
    {"heads of v", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.v.heads = 0; }); }},
    {"dim of k", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.k.dim = 7; }); }},
    {"length of v", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.v.length = 6; }); }},
    {"dim of out", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.out.dim = 8; }); }},
    {"negative extent", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.q.length = -1; }); }},
    {"shape of weights",
     [](Draw&, Tensor& out) {
       std::vector<float> weights(1000);
       attend(out, [&](auto& c) { c.extra.weights = {weights.data(), {2, 4, 7, 5}}; });
     }},
    {"weights over out",
     [](Draw&, Tensor& out) {
       float* const data = out.view<float>().data();
       attend(out, [&](auto& c) { c.extra.weights = {data, {2, 4, 5, 7}}; });
     }},
    {"null out",
     [](Draw&, Tensor&) {
       std::vector<float> in(1000);
       attn::scaled_dot_product_attention(
           View(in.data(), {1, 1, 2, 3}), View(in.data(), {1, 1, 2, 3}),
           View(in.data(), {1, 1, 2, 3}), attn::Tensor4<float>(nullptr, {1, 1, 2, 3}));
     }},
    {"out of stride 0",
     [](Draw&, Tensor& out) {
       std::vector<float> in(1000);
       attn::scaled_dot_product_attention(
           View(in.data(), {1, 1, 2, 3}), View(in.data(), {1, 1, 2, 3}),
           View(in.data(), {1, 1, 2, 3}),
           attn::Tensor4<float>(out.view<float>().data(), {1, 1, 2, 3}, {6, 6, 0, 1}));
     }},
    {"scale", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.options.scale = kNan; }); }},
    {"scale beyond float",
     [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.options.scale = 1e200; }); }},
    {"softcap", [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.options.softcap = -1; }); }},
    {"dropout",
     [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.options.dropout.probability = 1.5; }); }},
    {"count of sinks",
     [](Draw&, Tensor& out) {
       const std::vector<double> sinks(3);
       attend(out, [&](auto& c) { c.options.sinks = sinks; });
     }},
    {"NaN as a sink",
     [](Draw&, Tensor& out) {
       const std::vector<double> sinks(4, kNan);
       attend(out, [&](auto& c) { c.options.sinks = sinks; });
     }},
    {"count of offsets",
     [](Draw&, Tensor& out) {
       attend(out, [](auto& c) { c.options.query_offset = attn::PerBatch(kThree); });
     }},
    {"instruction set",
     [](Draw&, Tensor& out) {
       attend(out, [](auto& c) {
#if defined(__x86_64__)
         c.options.instruction_set = attn::InstructionSet::neon;
#else
         c.options.instruction_set = attn::InstructionSet::avx512;
#endif
       });
     }},
    {"small workspace",
     [](Draw&, Tensor& out) {
       char byte;
       attend(out, [&](auto& c) { c.options.workspace = {&byte, 1}; });
     }},
    {"causal without a place",
     [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.mask = attn::causal(); }); }},
    {"two places",
     [](Draw&, Tensor& out) {
       attend(out, [](auto& c) { c.mask = attn::causal_top_left() & attn::causal_bottom_right(); });
     }},
    {"lengths and no place",
     [](Draw&, Tensor& out) {
       attend(out, [](auto& c) { c.mask = attn::key_lengths(3) & attn::sliding_window(1, 1); });
     }},
    {"key length",
     [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.mask = attn::key_lengths(8); }); }},
    {"count of key lengths",
     [](Draw&, Tensor& out) { attend(out, [](auto& c) { c.mask = attn::key_lengths(kThree); }); }},
    {"window",
     [](Draw&, Tensor& out) {
       attend(out, [](auto& c) { c.mask = attn::sliding_window(-1, 0); });
     }},
    {"count of slopes",
     [](Draw&, Tensor& out) {
       const std::vector<double> slopes(5);
       attend(out, [&](auto& c) { c.mask = attn::alibi(slopes); });
     }},
    {"shape of a mask",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<bool> mask({1, 1, 7, 5});
       attend(out, [&](auto& c) { c.mask = attn::keep_where(mask); });
     }},
    {"shape of a bias",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<float> bias({3, 1, 1, 7});
       attend(out, [&](auto& c) { c.mask = attn::add_bias(bias); });
     }},
    {"a mask that throws",
     [](Draw& draw, Tensor&) {
       std::vector<float> own(500), in(500);
       const Index key = draw.below(7);
       attn::scaled_dot_product_attention(
           View(in.data(), {1, 1, 5, 8}), View(in.data(), {1, 1, 7, 8}),
           View(in.data(), {1, 1, 7, 8}), attn::Tensor4<float>(own.data(), {1, 1, 5, 8}),
           attn::keep_if([key](attn::ScorePosition at) {
             if (at.key == key) throw attn::OptionError("a key too many");
             return true;
           }));
     }},
    {"inspect another head",
     [](Draw&, Tensor&) {
       const attn::Tensor4Buffer<float> x({1, 2, 3, 4});
       attn::inspect_attention(x, x, x, 0, 2);
     }},
    {"shapes of a merge",
     [](Draw&, Tensor& out) {
       attn::Tensor4Buffer<float> a({1, 2, 3, 4}), b({1, 2, 3, 5}), lse({1, 2, 3, 1});
       attn::merge_attention(a, lse, b, lse,
                             attn::Tensor4<float>(out.view<float>().data(), {1, 2, 3, 4}), lse);
     }},
    {"starts that decrease",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<float> x({1, 2, 6, 4});
       const std::vector<std::int64_t> starts = {0, 4, 2, 6};
       attn::ragged_attention(x, x, x, attn::Tensor4<float>(out.view<float>().data(), {1, 2, 6, 4}),
                              starts);
     }},
    {"starts that end early",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<float> x({1, 2, 6, 4});
       const std::vector<std::int64_t> starts = {0, 4, 5};
       attn::ragged_attention(x, x, x, attn::Tensor4<float>(out.view<float>().data(), {1, 2, 6, 4}),
                              starts);
     }},
    {"append beyond the capacity",
     [](Draw&, Tensor&) {
       attn::KeyValueCache<float> cache(1, 2, 4, 8);
       const attn::Tensor4Buffer<float> x({1, 2, 5, 8});
       cache.append(x, x);
     }},
    {"heads of an append",
     [](Draw&, Tensor&) {
       attn::RollingKeyValueCache<float> cache(1, 2, 4, 8);
       const attn::Tensor4Buffer<float> x({1, 3, 2, 8});
       cache.append(x, x);
     }},
    {"window that is gone",
     [](Draw&, Tensor&) {
       attn::RollingKeyValueCache<float> cache(1, 2, 4, 8);
       const attn::Tensor4Buffer<float> x({1, 2, 1, 8});
       for (int i = 0; i < 9; ++i) cache.append(x, x);
       cache.truncate(3);
     }},
    {"queries before a rolling cache",
     [](Draw&, Tensor& out) {
       attn::RollingKeyValueCache<float> cache(1, 2, 4, 8);
       const attn::Tensor4Buffer<float> x({1, 2, 1, 8}), q({1, 2, 3, 8});
       for (int i = 0; i < 9; ++i) cache.append(x, x);
       attn::scaled_dot_product_attention(
           q, cache, attn::Tensor4<float>(out.view<float>().data(), {1, 2, 3, 8}));
     }},
    {"pages that are used up",
     [](Draw&, Tensor&) {
       attn::PagedKeyValueCache<float> cache(2, 2, 2, 1, 8);
       const attn::Tensor4Buffer<float> x({2, 1, 3, 8});
       cache.append(x, x);
     }},
    {"prefix of itself",
     [](Draw&, Tensor&) {
       attn::PagedKeyValueCache<float> cache(2, 2, 2, 1, 8);
       cache.share_prefix(1, 1, 0);
     }},
    {"sequence of a cache",
     [](Draw&, Tensor& out) {
       attn::KeyValueCache<float> cache(2, 2, 4, 8);
       cache.reset(out.shape().dim);
     }},
    {"out of linear",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<float> x({1, 1, 3, 4}), w({1, 1, 5, 4});
       attn::linear(x, attn::LinearWeights<float>{w.view()},
                    attn::Tensor4<float>(out.view<float>().data(), {1, 1, 3, 4}));
     }},
    {"epsilon",
     [](Draw&, Tensor& out) {
       const attn::Tensor4Buffer<float> x({1, 1, 3, 4});
       attn::layer_norm(x, attn::LayerNormWeights<float>{nullptr, nullptr, -1},
                        attn::Tensor4<float>(out.view<float>().data(), {1, 1, 3, 4}));
     }},
    {"odd rotary_dim",
     [](Draw&, Tensor&) { attn::RotaryEmbedding(7, attn::RotaryPairing::interleaved); }},
    {"heads of a layer", [](Draw&, Tensor&) { attn::MultiHeadAttention<float>(10, 3, 1); }},
    {"x of a layer",
     [](Draw&, Tensor& out) {
       const attn::MultiHeadAttention<float> layer(8, 2, 1);
       const attn::Tensor4Buffer<float> x({1, 1, 3, 9});
       layer.forward(x, attn::Tensor4<float>(out.view<float>().data(), {1, 1, 3, 8}));
     }},
    {"cache of a layer",
     [](Draw&, Tensor& out) {
       const attn::MultiHeadAttention<float> layer(8, 2, 1);
       attn::KeyValueCache<float> cache(1, 1, 4, 4);
       const attn::Tensor4Buffer<float> x({1, 1, 3, 8});
       layer.step(x, cache, attn::Tensor4<float>(out.view<float>().data(), {1, 1, 3, 8}));
     }},
    {"dropout beside a block's",
     [](Draw&, Tensor& out) {
       const attn::AttentionBlock<float> block(attn::MultiHeadAttention<float>(8, 2, 1));
       const attn::Tensor4Buffer<float> x({1, 1, 3, 8});
       attn::AttentionOptions options;
       options.dropout.probability = 0.5;
       block.forward(x, attn::Tensor4<float>(out.view<float>().data(), {1, 1, 3, 8}),
                     attn::no_mask(), options);
     }},
    {"labels of a heatmap",
     [](Draw&, Tensor&) {
       attn::HeatmapOptions options;
       options.key_labels = {"one"};
       attn::heatmap_svg(Eigen::MatrixXf::Zero(2, 3).eval(), options);
     }},
    {"slice",
     [](Draw&, Tensor&) {
       const attn::Tensor4Buffer<float> x({1, 1, 3, 4});
       x.view().slice_length(2, 2);
     }},
};

}  // namespace

void call_error(Draw& draw, Line& line) {
  const Wrong& wrong = kWrong[draw.below(static_cast<Index>(std::size(kWrong)))];
  line.say(wrong.name);
  Tensor out(Element::f32, {1, 1, 1, 1000});
  Hash before;
  out.add_to(before);
  const auto note = [&] {
    Hash after;
    out.add_to(after);
    if (after.value() != before.value()) line.say("(written)");
  };
  try {
    wrong.call(draw, out);
  } catch (...) {
    note();
    throw;
  }
  note();
  line.say("(no error)");
}

}  // namespace compare

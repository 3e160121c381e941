#include "draw.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>

namespace compare {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Index kMargin = 67;  // more than a vector register of any element

std::size_t size_of(Element element) {
  switch (element) {
    case Element::f64:
      return 8;
    case Element::f32:
      return 4;
    case Element::boolean:
      return 1;
    default:
      return 2;
  }
}

/// Several layouts need extents of at least 1 to be of any sense; strides of empty tensors do not
/// matter.
Stride4 strides_of(Layout layout, const Shape4& s) {
  switch (layout) {
    case Layout::bshd:
      return {s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1};
    case Layout::padded: {
      const Index row = s.dim + 3, head = s.length * row + 5;
      return {s.heads * head + 7, head, row, 1};
    }
    case Layout::permuted:
      return {s.length, s.batch * s.length, 1, s.heads * s.batch * s.length};
    case Layout::inner_stride:
      return {3 * s.heads * s.length * s.dim, 3 * s.length * s.dim, 3 * s.dim, 3};
    case Layout::negative:
      return {-s.heads * s.length * s.dim, -s.length * s.dim, -s.dim, -1};
    case Layout::mixed: {
      const Index dim = 2 * s.batch, row = dim * s.dim + 1;
      return {1, s.length * row + 3, -row, dim};
    }
    case Layout::one_batch:
      return {0, s.length * s.dim, s.dim, 1};
    case Layout::one_head:
      return {s.length * s.dim, 0, s.dim, 1};
    case Layout::contiguous:
      break;
  }
  return {s.heads * s.length * s.dim, s.length * s.dim, s.dim, 1};
}

template <class F>
void for_each_index(const Shape4& s, const F& f) {
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      for (Index i = 0; i < s.length; ++i) {
        for (Index d = 0; d < s.dim; ++d) f(b, h, i, d);
      }
    }
  }
}

template <class T>
T element_from(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}
std::string number(Index value) { return std::to_string(value); }

}  // namespace

const char* name_of(Element element) {
  switch (element) {
    case Element::f64:
      return "f64";
    case Element::f32:
      return "f32";
    case Element::f16:
      return "f16";
    case Element::bf16:
      return "bf16";
    case Element::boolean:
      break;
  }
  return "bool";
}

Element draw_element(Draw& draw) {
  return draw.of({Element::f32, Element::f32, Element::f32, Element::f64, Element::f16,
                  Element::bf16, Element::bf16});
}

std::vector<Element> draw_elements(Draw& draw, int count) {
  std::vector<Element> elements(static_cast<std::size_t>(count), draw_element(draw));
  if (draw.one_in(3)) {
    for (Element& element : elements) element = draw_element(draw);
  }
  return elements;
}

Layout draw_layout(Draw& draw) {
  if (draw.one_in(2)) return draw.of({Layout::contiguous, Layout::bshd});
  return static_cast<Layout>(draw.below(7));
}
Layout draw_input_layout(Draw& draw) {
  return draw.one_in(12) ? draw.of({Layout::one_batch, Layout::one_head}) : draw_layout(draw);
}

Tensor::Tensor(Element type, Shape4 shape, Layout layout)
    : type_(type), shape_(shape), stride_(strides_of(layout, shape)) {
  Index lowest = 0, highest = -1;
  if (shape.size() > 0) {
    highest = 0;
    const Index reach[] = {(shape.batch - 1) * stride_.batch, (shape.heads - 1) * stride_.heads,
                           (shape.length - 1) * stride_.length, (shape.dim - 1) * stride_.dim};
    for (const Index r : reach) (r < 0 ? lowest : highest) += r;
  }
  first_ = kMargin - lowest;
  count_ = 2 * kMargin + highest - lowest + 1;
  const std::size_t bytes = static_cast<std::size_t>(count_) * size_of(type);
  memory_.resize((bytes + sizeof(double) - 1) / sizeof(double));
  // A finite number of every type, that no call returns.
  std::memset(memory_.data(), 0x5A, memory_.size() * sizeof(double));
}

void Tensor::set(Index b, Index h, Index i, Index d, double value) {
  if (type_ == Element::boolean) {
    view<std::uint8_t>()(b, h, i, d) = value != 0;
    return;
  }
  visit(type_, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    view<T>()(b, h, i, d) = element_from<T>(value);
  });
}

void Tensor::fill(Draw& draw, double limit) {
  // Inputs lie among NaNs: all bits set, in every type.
  std::memset(memory_.data(), 0xFF, memory_.size() * sizeof(double));
  visit(type_, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const attn::Tensor4<T> to = view<T>();
    for_each_index(shape_, [&](Index b, Index h, Index i, Index d) {
      to(b, h, i, d) = element_from<T>(limit * draw.real());
    });
  });
}

void Tensor::fill_boolean(Draw& draw, double probability) {
  const attn::Tensor4<std::uint8_t> to = view<std::uint8_t>();
  for_each_index(shape_, [&](Index b, Index h, Index i, Index d) {
    to(b, h, i, d) = draw.real() < 2 * probability - 1;
  });
}

void Tensor::scatter(Draw& draw, Index count, std::initializer_list<double> values) {
  if (shape_.size() == 0) return;
  for (Index n = 0; n < count; ++n) {
    const Index b = draw.below(shape_.batch), h = draw.below(shape_.heads);
    // Often the last ones, which lengths and causal masks drop.
    const Index i = draw.one_in(2) ? shape_.length - 1 : draw.below(shape_.length);
    const double value = draw.of(values);
    if (draw.one_in(3)) {
      for (Index d = 0; d < shape_.dim; ++d) set(b, h, i, d, value);
    } else {
      set(b, h, i, draw.below(shape_.dim), value);
    }
  }
}

void Tensor::add_to(Hash& hash) const {
  if (!is_given()) return;
  const auto add = [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* const first = reinterpret_cast<const T*>(memory_.data());
    for (Index i = 0; i < count_; ++i) hash.add_element(first[i]);
  };
  if (type_ == Element::boolean) {
    add(static_cast<std::uint8_t*>(nullptr));
  } else {
    visit(type_, add);
  }
}

Tensor draw_tensor(Draw& draw, Element type, Shape4 shape, Layout layout) {
  Tensor tensor(type, shape, layout);
  tensor.fill(draw, draw.of({1.0, 1.0, 1.0, 3.0, 0.1, 30.0}));
  if (draw.one_in(12)) {
    tensor.scatter(draw, draw.between(1, 4), {kNan, kInfinity, -kInfinity});
  } else if (draw.one_in(12)) {
    tensor.scatter(draw, draw.between(1, 30), {-0.0, 1e-40, -1e-310, 6e-8, 6e4, -1e30});
  }
  return tensor;
}
Tensor draw_tensor(Draw& draw, Element type, Shape4 shape) {
  return draw_tensor(draw, type, shape, draw_input_layout(draw));
}
Tensor draw_result(Draw& draw, Element type, Shape4 shape) {
  return Tensor(type, shape, draw_layout(draw));
}

std::string Sizes::text() const {
  return "B" + number(batch) + " H" + number(query_heads) + "/" + number(key_heads) + "/" +
         number(value_heads) + " S" + number(queries) + "/" + number(keys) + " D" +
         number(key_dim) + "/" + number(value_dim);
}

Index draw_dim(Draw& draw) {
  if (draw.one_in(40)) return draw.of({0, 300, 520, 1040, 2100});
  if (draw.one_in(2)) return draw.of({16, 32, 64, 64, 128});
  return draw.of({1, 2, 3, 4, 5, 8, 15, 17, 24, 31, 33, 40, 48, 65, 80, 96, 100, 256});
}

Sizes draw_sizes(Draw& draw) {
  static constexpr Index kHeads[][3] = {
      {1, 1, 1}, {1, 1, 1}, {2, 2, 2}, {4, 4, 4},  {4, 2, 2},  {4, 1, 1},  {8, 2, 2},
      {6, 3, 2}, {6, 2, 3}, {4, 2, 1}, {4, 1, 4},  {12, 4, 6}, {3, 1, 3},  {9, 3, 3},
      {8, 8, 2}, {7, 1, 1}, {8, 1, 1}, {6, 6, 6},  {16, 1, 1}, {32, 8, 8}, {32, 32, 32},
      {5, 5, 1}, {2, 1, 1}, {8, 4, 4}, {10, 5, 5}, {10, 5, 2}, {24, 1, 1},
  };
  Sizes s;
  s.batch = draw.one_in(100) ? 0 : draw.of({1, 1, 1, 2, 3, 5});
  const Index* const heads = kHeads[draw.below(static_cast<Index>(std::size(kHeads)))];
  s.query_heads = heads[0], s.key_heads = heads[1], s.value_heads = heads[2];
  if (draw.one_in(100)) s.query_heads = 0;
  s.key_dim = draw_dim(draw);
  s.value_dim = draw.one_in(2) ? s.key_dim : draw_dim(draw);
  const Index group = (std::max)(Index{1}, s.query_heads / (std::max)(s.key_heads, s.value_heads));
  switch (draw.below(10)) {
    case 0:
    case 1:  // one query, few queries: decoding
      s.queries = draw.one_in(2) ? 1 : draw.between(1, 5);
      s.keys = draw.one_in(3) ? draw.below(1500) : draw.of({1, 7, 128, 129, 511, 512, 513, 1024});
      break;
    case 2:  // long keys, which are split
      s.queries = draw.one_in(2) ? 1 : draw.between(1, 9);
      s.keys = draw.one_in(2) ? draw.between(4090, 9000) : draw.of({4095, 4096, 4097, 8192, 8193});
      break;
    case 3:  // around the change from few rows to many
      s.queries = (std::max)(Index{1}, draw.between(14, 33) / group);
      s.keys = draw.between(120, 140);
      break;
    case 4:  // several hundred rows
      s.queries = draw.between(100, 400);
      s.keys = draw.one_in(2) ? s.queries : draw.between(1, 700);
      break;
    case 5:  // squares
      s.queries = s.keys = draw.one_in(8) ? 0 : draw.between(1, 300);
      break;
    case 6:  // the edges of key tiles
      s.queries = draw.between(1, 70);
      s.keys = draw.of({0, 1, 127, 128, 129, 255, 256, 257, 384, 511, 512, 513});
      break;
    default:
      s.queries = draw.one_in(30) ? 0 : draw.between(1, 70);
      s.keys = draw.one_in(2) ? draw.below(70) : draw.below(700);
      break;
  }
  // At most some 10^8 multiplications.
  const auto cost = [&] {
    return static_cast<double>(s.batch * s.query_heads) *
           static_cast<double>(s.queries + s.key_heads) * static_cast<double>(s.keys) *
           static_cast<double>(s.key_dim + s.value_dim);
  };
  while (cost() > 1.5e8) {
    if (s.batch > 1) {
      s.batch = 1;
    } else if (s.key_dim + s.value_dim > 128) {
      s.key_dim = (s.key_dim + 1) / 2, s.value_dim = (s.value_dim + 1) / 2;
    } else if (s.queries > 70) {
      s.queries = s.queries * 2 / 3;
    } else if (s.key_heads > 1 && s.key_heads == s.value_heads) {
      s.query_heads /= s.key_heads, s.key_heads = s.value_heads = 1;
    } else if (s.queries > 8) {
      s.queries = s.queries / 2;
    } else {
      s.keys = s.keys / 2;
    }
  }
  return s;
}

attn::InstructionSet draw_instruction_set(Draw& draw) {
  using attn::InstructionSet;
  if (draw.one_in(2)) return InstructionSet::best;
#if defined(__x86_64__)
  const InstructionSet set =
      draw.of({InstructionSet::generic, InstructionSet::sse2, InstructionSet::avx2,
               InstructionSet::avx2, InstructionSet::avx512});
  return static_cast<int>(set) <= static_cast<int>(attn::active_instruction_set())
             ? set
             : InstructionSet::best;
#else
  return InstructionSet::generic;
#endif
}

attn::Executor* draw_executor(Draw& draw) {
  static attn::ThreadPool pool(2);
  return draw.one_in(3) ? &pool : nullptr;
}

void Options::draw(Draw& draw, const Shape4& scores, bool may_place, Line& line) {
  if (draw.one_in(4)) {
    value.scale = draw.of({0.0, 1.0, -0.5, 0.3, 2.0});
    line.say("scale " + number(*value.scale));
  }
  if (draw.one_in(5)) {
    value.softcap = draw.of({0.5, 5.0, 20.0, 50.0});
    line.say("softcap " + number(value.softcap));
  }
  if (draw.one_in(6)) {
    value.dropout.probability = draw.of({0.1, 0.1, 0.5, 0.9, 1.0});
    value.dropout.seed = draw.bits();
    value.dropout.offset = draw.bits();
    line.say("dropout " + number(value.dropout.probability));
  }
  if (draw.one_in(6)) {
    for (Index h = 0; h < scores.heads; ++h) {
      sinks.push_back(draw.one_in(5) ? -kInfinity : 4 * draw.real());
    }
    value.sinks = sinks;
    line.say("sinks");
  }
  if (may_place && draw.one_in(2)) {
    const Index count = draw.one_in(2) ? 1 : scores.batch;
    for (Index b = 0; b < count; ++b) {
      const Index at_end = scores.dim - scores.length;
      offsets.push_back(draw.one_in(2) ? at_end : at_end + draw.between(-40, 40));
    }
    if (count == 1) {
      value.query_offset = attn::PerBatch(offsets[0]);
    } else {
      value.query_offset = attn::PerBatch(offsets);
    }
    line.say(count == 1 ? "offset " + number(static_cast<Index>(offsets[0])) : "offsets");
  }
  value.executor = draw_executor(draw);
  if (value.executor != nullptr) line.say("pool");
  value.instruction_set = draw_instruction_set(draw);
  if (value.instruction_set != attn::InstructionSet::best) {
    line.say("set " + number(static_cast<Index>(value.instruction_set)));
  }
  value.allow_bf16_weights = draw.one_in(2);
  if (value.allow_bf16_weights) line.say("allow");
}

void Options::set_workspace(std::size_t bytes) {
  workspace.resize(bytes + 1);
  value.workspace = {workspace.data() + 1, bytes};
}

Tensor& Masks::draw_boolean(Draw& draw, const Shape4& scores) {
  Shape4 shape = scores;
  for (Index* const extent : {&shape.batch, &shape.heads, &shape.length, &shape.dim}) {
    if (draw.one_in(3)) *extent = 1;
  }
  tensors_.emplace_back(Element::boolean, shape, draw_layout(draw));
  tensors_.back().fill_boolean(draw, draw.of({0.02, 0.2, 0.5, 0.9, 1.0}));
  return tensors_.back();
}

Tensor& Masks::draw_bias(Draw& draw, const Shape4& scores) {
  Shape4 shape = scores;
  for (Index* const extent : {&shape.batch, &shape.heads, &shape.length, &shape.dim}) {
    if (draw.one_in(3)) *extent = 1;
  }
  tensors_.emplace_back(draw_element(draw), shape, draw_layout(draw));
  Tensor& bias = tensors_.back();
  bias.fill(draw, draw.of({1.0, 3.0, 20.0}));
  if (draw.one_in(3)) bias.scatter(draw, draw.below(shape.size() / 4 + 1), {-kInfinity});
  if (draw.one_in(8)) bias.scatter(draw, 3, {-1e300, -1e30, 1e4, kNan});
  return bias;
}

attn::AnyMask Masks::draw_causal(Draw& draw, const Shape4& scores, const Options& options,
                                 Source source, Line& line) {
  const bool is_placed = options.value.query_offset.has_value();
  if (causal_ == 0) {
    // Masks of one call must agree where queries stand.
    const bool may_be_plain = source == Source::cache || scores.length == scores.dim;
    causal_ = static_cast<int>(is_placed ? 1 : draw.between(may_be_plain ? 1 : 2, 4));
  }
  switch (causal_) {
    case 1:
      if (is_placed && draw.one_in(2)) {
        line.say("causal_from");
        return attn::causal_from(*options.value.query_offset);
      }
      line.say("causal");
      return attn::causal();
    case 2:
      line.say("causal_top_left");
      return attn::causal_top_left();
    case 3:
      line.say("causal_bottom_right");
      return attn::causal_bottom_right();
    default:
      wide_numbers_.emplace_back();
      for (Index b = 0; b < scores.batch; ++b) wide_numbers_.back().push_back(7 - 11 * b);
      line.say("causal_from");
      return attn::causal_from(wide_numbers_.back());
  }
}

attn::AnyMask Masks::draw_one(Draw& draw, const Shape4& scores, const Options& options,
                              Source source, Line& line) {
  // Sequences of any length share what does not vary along queries and keys.
  const Shape4 shape = source == Source::ragged ? Shape4{scores.batch, scores.heads, 1, 1} : scores;
  switch (draw.below(13)) {
    case 0:
    case 1:
      return draw_causal(draw, scores, options, source, line);
    case 2: {
      const Index left = draw.one_in(4) ? attn::kUnlimited : draw.of({0, 1, 5, 30, 130, 300});
      const Index right = draw.one_in(4) ? attn::kUnlimited : draw.of({0, 0, 2, 20, 200});
      line.say("window");
      return attn::sliding_window(left, right);
    }
    case 3: {
      line.say("key_lengths");
      const Index keys = scores.dim;
      if (draw.one_in(3)) return attn::key_lengths(draw.between(0, keys));
      numbers_.emplace_back();
      for (Index b = 0; b < scores.batch; ++b) {
        numbers_.back().push_back(
            static_cast<std::int32_t>(draw.one_in(2) ? keys : draw.between(0, keys)));
      }
      return attn::key_lengths(numbers_.back());
    }
    case 4: {
      line.say("keep_where");
      Tensor& mask = draw_boolean(draw, shape);
      if (draw.one_in(2)) return attn::keep_where(mask.view<std::uint8_t>());
      return attn::keep_where(mask.view<bool>());
    }
    case 5:
      line.say("drop_where");
      return attn::drop_where(draw_boolean(draw, shape).view<bool>());
    case 6:
    case 7: {
      Tensor& bias = draw_bias(draw, shape);
      line.say(std::string("add_bias ") + name_of(bias.type()));
      return visit(bias.type(), [&](auto* type) {
        return attn::AnyMask(attn::add_bias(bias.view<Pointee<decltype(type)>>()));
      });
    }
    case 8: {
      line.say("alibi");
      if (draw.one_in(2)) return attn::alibi();
      slopes_.emplace_back();
      for (Index h = 0; h < scores.heads; ++h) slopes_.back().push_back(0.3 * draw.real());
      return attn::alibi(slopes_.back());
    }
    case 9: {
      const Index step = draw.between(2, 5);
      line.say("keep_if");
      return attn::keep_if([step](attn::ScorePosition at) {
        return (at.batch + at.head + 3 * at.query_position + at.key) % step != 0;
      });
    }
    case 10: {
      const Index step = draw.between(2, 5);
      line.say("drop_if");
      return attn::drop_if([step](attn::ScorePosition at) {
        return at.query % 7 == 2 || at.key % step == at.head % step;
      });
    }
    case 11: {
      const Index step = draw.between(2, 9);
      if (draw.one_in(3)) {
        line.say("modify_score that drops");
        return attn::modify_score([step](auto score, attn::ScorePosition at) {
          using A = decltype(score);
          return at.key % step == 1 ? -std::numeric_limits<A>::infinity() : score;
        });
      }
      line.say("modify_score");
      return attn::modify_score([step](auto score, attn::ScorePosition at) {
        using A = decltype(score);
        return score * A(0.5) + static_cast<A>((at.key + at.query_position + at.batch) % step);
      });
    }
    default:
      line.say("no_mask");
      return attn::no_mask();
  }
}

attn::AnyMask Masks::draw(Draw& draw, const Shape4& scores, const Options& options, Source source,
                          Line& line) {
  const Index count = draw.of({0, 1, 1, 1, 2, 2, 3});
  attn::AnyMask mask;
  for (Index i = 0; i < count; ++i) {
    if (i > 0) line.say("&");
    const attn::AnyMask next = draw_one(draw, scores, options, source, line);
    mask = i == 0 ? next : attn::AnyMask(mask & next);
  }
  return mask;
}

}  // namespace compare

// bench/compare/draw.hpp - what random calls are made of: numbers, tensors of any element type and
// strides, masks, options, and the hash of what a call returns.
//
// Everything is a function of the seed alone. Only the public API of attn is used, so that the same
// file compiles against two versions of it.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.hpp"

namespace compare {

using attn::Index;
using attn::Shape4;
using attn::Stride4;

/// A seeded sequence of numbers (SplitMix64).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  Index below(Index bound) {
    return bound <= 0 ? 0 : static_cast<Index>((bits() >> 11) % static_cast<std::uint64_t>(bound));
  }
  /// Both ends counted.
  Index between(Index low, Index high) { return low + below(high - low + 1); }
  bool one_in(Index n) { return below(n) == 0; }
  /// In [-1, 1).
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-52 - 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<Index>(values.size()))];
  }
  Index of(std::initializer_list<int> values) {
    return values.begin()[below(static_cast<Index>(values.size()))];
  }

 private:
  std::uint64_t state_;
};

/// 64 bits of everything that was added. All NaNs count as one: which of two a sum keeps is up to
/// the compiler.
class Hash {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  void add(Index number) { add(static_cast<std::uint64_t>(number)); }
  void add(const std::string& text) {
    for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    add(static_cast<Index>(text.size()));
  }
  template <class T>
  void add_element(const T& element) {
    if constexpr (sizeof(T) == 8) {
      add_number<std::uint64_t>(element, 0x7FF0000000000000u);
    } else if constexpr (sizeof(T) == 4) {
      add_number<std::uint32_t>(element, 0x7F800000u);
    } else if constexpr (sizeof(T) == 2) {
      constexpr bool kIsHalf = std::is_same_v<T, Eigen::half>;
      add_number<std::uint16_t>(element, kIsHalf ? 0x7C00u : 0x7F80u);
    } else {
      add(static_cast<std::uint64_t>(element));
    }
  }
  template <class T>
  void add_view(const attn::Tensor4<T>& view) {
    for (const Index extent : {view.batch(), view.heads(), view.length(), view.dim()}) add(extent);
    for (Index b = 0; b < view.batch(); ++b) {
      for (Index h = 0; h < view.heads(); ++h) {
        for (Index i = 0; i < view.length(); ++i) {
          for (Index d = 0; d < view.dim(); ++d) add_element(view(b, h, i, d));
        }
      }
    }
  }
  template <class T>
  void add_view(const attn::Tensor4Buffer<T>& buffer) {
    add_view(buffer.view());
  }
  std::uint64_t value() const { return state_; }

 private:
  template <class Bits, class T>
  void add_number(const T& element, Bits infinity) {
    static_assert(sizeof(Bits) == sizeof(T));
    Bits bits;
    std::memcpy(&bits, &element, sizeof bits);
    const Bits magnitude = static_cast<Bits>(bits & static_cast<Bits>(~Bits{0} >> 1));
    add(static_cast<std::uint64_t>(magnitude > infinity ? ~Bits{0} >> 1 : bits));
  }

  std::uint64_t state_ = 0x243F6A8885A308D3u;
};

/// One call: what is printed of it.
struct Line {
  std::string text;
  Hash hash;

  void say(const std::string& words) { text += (text.empty() ? "" : " ") + words; }
};

enum class Element { f64, f32, f16, bf16, boolean };
const char* name_of(Element element);
/// float mostly, now and then one of the others.
Element draw_element(Draw& draw);
/// Of `count` tensors of one call: often all alike, else any mixture.
std::vector<Element> draw_elements(Draw& draw, int count);

/// f(T*) of an element type that is no boolean; the pointer is null and tells the type.
template <class F>
decltype(auto) visit(Element element, const F& f) {
  switch (element) {
    case Element::f64:
      return f(static_cast<double*>(nullptr));
    case Element::f16:
      return f(static_cast<Eigen::half*>(nullptr));
    case Element::bf16:
      return f(static_cast<Eigen::bfloat16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}
template <class Pointer>
using Pointee = std::remove_pointer_t<Pointer>;

template <class T>
constexpr Element element_of() {
  return std::is_same_v<T, double>        ? Element::f64
         : std::is_same_v<T, float>       ? Element::f32
         : std::is_same_v<T, Eigen::half> ? Element::f16
                                          : Element::bf16;
}

enum class Layout {
  contiguous,    // batch, heads, length, dim
  bshd,          // batch, length, heads, dim
  padded,        // gaps after each row, head and batch
  permuted,      // dim slowest, length fastest
  inner_stride,  // every third element
  negative,      // every stride negative
  mixed,         // length negative and padded, dim strided, batch innermost of all
  one_batch,     // batch of stride 0: for inputs alone
  one_head,      // heads of stride 0: for inputs alone
};
Layout draw_layout(Draw& draw);
Layout draw_input_layout(Draw& draw);

/// A tensor of any type and strides over memory of its own, with some memory around it that is no
/// part of it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Element type, Shape4 shape, Layout layout = Layout::contiguous);

  Element type() const { return type_; }
  const Shape4& shape() const { return shape_; }
  bool is_given() const { return !memory_.empty(); }
  template <class T>
  attn::Tensor4<T> view() {
    return {reinterpret_cast<T*>(memory_.data()) + first_, shape_, stride_};
  }
  template <class T>
  attn::Tensor4<const T> read() {
    return view<T>();
  }

  /// Uniform in [-limit, limit).
  void fill(Draw& draw, double limit = 1);
  /// Of booleans: true with this probability.
  void fill_boolean(Draw& draw, double probability);
  /// Sets `count` elements, or where they lie in whole rows the rows, to values like `values`.
  void scatter(Draw& draw, Index count, std::initializer_list<double> values);
  /// All memory, that around the tensor too: nobody may have written there.
  void add_to(Hash& hash) const;

 private:
  void set(Index b, Index h, Index i, Index d, double value);

  Element type_ = Element::f32;
  Shape4 shape_;
  Stride4 stride_;
  Index first_ = 0, count_ = 0;
  std::vector<double> memory_;  // for its alignment
};

/// Uniform numbers at a scale of their own, sometimes with a few that are not finite, or tiny.
Tensor draw_tensor(Draw& draw, Element type, Shape4 shape, Layout layout);
/// The same, its layout drawn too.
Tensor draw_tensor(Draw& draw, Element type, Shape4 shape);
/// A result yet to be written, of drawn layout.
Tensor draw_result(Draw& draw, Element type, Shape4 shape);

/// The sizes of one call of attention.
struct Sizes {
  Index batch, query_heads, key_heads, value_heads, queries, keys, key_dim, value_dim;

  Shape4 q() const { return {batch, query_heads, queries, key_dim}; }
  Shape4 k() const { return {batch, key_heads, keys, key_dim}; }
  Shape4 v() const { return {batch, value_heads, keys, value_dim}; }
  Shape4 out() const { return {batch, query_heads, queries, value_dim}; }
  Shape4 scores() const { return {batch, query_heads, queries, keys}; }
  Shape4 sums() const { return {batch, query_heads, queries, 1}; }
  std::string text() const;
};
Sizes draw_sizes(Draw& draw);
Index draw_dim(Draw& draw);

/// All instruction sets that this CPU offers, `best` often.
attn::InstructionSet draw_instruction_set(Draw& draw);
attn::Executor* draw_executor(Draw& draw);

/// Drawn options, and the memory that they point to.
struct Options {
  attn::AttentionOptions value;
  std::vector<double> sinks;
  std::vector<std::int64_t> offsets;
  std::vector<std::byte> workspace;

  Options() = default;
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  /// `may_place`: whether query_offset may be set.
  void draw(Draw& draw, const Shape4& scores, bool may_place, Line& line);
  /// Hands in `bytes` of memory, at no alignment.
  void set_workspace(std::size_t bytes);
};

/// Drawn masks, and the memory that they point to.
class Masks {
 public:
  Masks() = default;
  Masks(const Masks&) = delete;
  Masks& operator=(const Masks&) = delete;

  enum class Source { tensors, cache, ragged };
  /// A composition of up to three masks for scores of this shape. `ragged`: for sequences of any
  /// lengths.
  attn::AnyMask draw(Draw& draw, const Shape4& scores, const Options& options, Source source,
                     Line& line);

  Tensor& draw_boolean(Draw& draw, const Shape4& scores);
  Tensor& draw_bias(Draw& draw, const Shape4& scores);

 private:
  attn::AnyMask draw_one(Draw& draw, const Shape4& scores, const Options& options, Source source,
                         Line& line);
  attn::AnyMask draw_causal(Draw& draw, const Shape4& scores, const Options& options, Source source,
                            Line& line);

  std::deque<Tensor> tensors_;
  std::deque<std::vector<std::int64_t>> wide_numbers_;
  std::deque<std::vector<std::int32_t>> numbers_;
  std::deque<std::vector<double>> slopes_;
  int causal_ = 0;  // which of the causal masks this composition uses
};

inline attn::PerBatch per_batch(const std::vector<std::int64_t>& numbers) {
  return numbers.size() == 1 ? attn::PerBatch(numbers[0]) : attn::PerBatch(numbers);
}

/// The kinds of calls. Each draws one, says in the line what it is, and hashes its results.
void call_tensors(Draw& draw, Line& line);
void call_returning(Draw& draw, Line& line);
void call_plain_masks(Draw& draw, Line& line);
void call_inspect(Draw& draw, Line& line);
void call_ragged(Draw& draw, Line& line);
void call_merge(Draw& draw, Line& line);
void call_cache(Draw& draw, Line& line);
void call_linear(Draw& draw, Line& line);
void call_norm(Draw& draw, Line& line);
void call_rotary(Draw& draw, Line& line);
void call_layer(Draw& draw, Line& line);
void call_layer_cache(Draw& draw, Line& line);
void call_block(Draw& draw, Line& line);
void call_text(Draw& draw, Line& line);
void call_error(Draw& draw, Line& line);

}  // namespace compare

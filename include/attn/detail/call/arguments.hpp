// attn/detail/call/arguments.hpp - level 5: the front door: what the arguments of public functions
// may be, and the sentence that the compiler says where one is something else. After a sentence the
// functions here go on with an argument that fits, so that it stays the only error.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <Eigen/Core>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {

struct Mask;  // masks/concept.hpp

namespace detail {

/// Specialised by caches, which stand in the place of k and v.
template <class T>
inline constexpr bool is_cache_v = false;

/// What a tensor argument holds: a Tensor4, a Tensor4Buffer, or an Eigen matrix, which is one head.
template <class Argument, class = void>
struct TensorArgument {
  static constexpr bool kIsTensor = false;
  static constexpr bool kOwns = false;
  using Element = float;  // lets the sentence about the argument speak first
};
template <class T>
struct TensorArgument<Tensor4<T>> {
  static constexpr bool kIsTensor = true;
  static constexpr bool kOwns = false;
  using Element = T;
  ATTN_ALWAYS_INLINE static Tensor4<T> view(const Tensor4<T>& argument) { return argument; }
};
template <class T>
struct TensorArgument<Tensor4Buffer<T>> {
  static constexpr bool kIsTensor = true;
  static constexpr bool kOwns = true;
  using Element = T;
  ATTN_ALWAYS_INLINE static Tensor4<T> view(Tensor4Buffer<T>& argument) { return argument.view(); }
  ATTN_ALWAYS_INLINE static Tensor4<const T> view(const Tensor4Buffer<T>& argument) {
    return argument.view();
  }
};
template <class Expression>
struct TensorArgument<Expression, std::enable_if_t<has_eigen_memory_v<Expression>>> {
  static constexpr bool kIsTensor = true;
  static constexpr bool kOwns = is_plain_v<Expression>;
  using Element = typename Expression::Scalar;
  template <class Matrix>  // const or not
  ATTN_ALWAYS_INLINE static auto view(Matrix& argument) {
    return view_tokens(argument, 1, 1);
  }
};
template <class Cache>
struct TensorArgument<Cache, std::enable_if_t<is_cache_v<Cache>>> {
  static constexpr bool kIsTensor = false;
  static constexpr bool kOwns = false;
  using Element = typename Cache::Element;
};
template <class Argument>
using ArgumentOf = TensorArgument<std::remove_cv_t<std::remove_reference_t<Argument>>>;
template <class Argument>
inline constexpr bool is_tensor_v = ArgumentOf<Argument>::kIsTensor;
template <class Argument>
using ElementOf = std::remove_const_t<typename ArgumentOf<Argument>::Element>;
/// The type that sums over the elements of these arguments are held in.
template <class... Arguments>
using AccumulationOf = AccumulationType<ElementOf<Arguments>...>;

inline namespace ATTN_BUILD {

template <class T>
constexpr void require_element() {
  static_assert(is_element_v<std::remove_const_t<T>>,
                "attn: the elements of a tensor must be double, float, Eigen::half or "
                "Eigen::bfloat16");
}

template <class Argument>
constexpr void require_tensor() {
  using Plain = std::remove_cv_t<std::remove_reference_t<Argument>>;
  constexpr bool is_expression = !std::is_void_v<EigenExpression<Plain>>;
  static_assert(!is_expression || is_tensor_v<Argument>,
                "attn: this Eigen expression has no elements in memory yet: evaluate it into a "
                "Matrix first");
  static_assert(is_expression || is_tensor_v<Argument>,
                "attn: a tensor must be an attn::Tensor4 view (or Tensor4Buffer, or an Eigen "
                "matrix, which is one head); make a view with attn::bhsd, attn::bshd, attn::bsd or "
                "attn::view");
  require_element<ElementOf<Argument>>();
}

/// The view of an argument that is read.
template <class Argument>
auto input_view(const Argument& argument) {
  require_tensor<Argument>();
  if constexpr (is_tensor_v<Argument>) {
    return ArgumentOf<Argument>::view(argument);
  } else {
    return Tensor4<const float>();
  }
}

/// The view of an argument that is written: output_view<O>(out) for a parameter O&& out.
template <class Argument>
auto output_view(std::remove_reference_t<Argument>& argument) {
  require_tensor<Argument>();
  static_assert(!ArgumentOf<Argument>::kOwns || std::is_lvalue_reference_v<Argument>,
                "attn: out is a temporary that owns its memory: what is written would be lost");
  if constexpr (is_tensor_v<Argument>) {
    using T = typename decltype(ArgumentOf<Argument>::view(argument))::Element;
    static_assert(!std::is_const_v<T>,
                  "attn: out is written to: its element type must not be const");
    const Tensor4<T> view_of_it = ArgumentOf<Argument>::view(argument);
    using Written = std::remove_const_t<T>;
    return Tensor4<Written>(const_cast<Written*>(view_of_it.data()), view_of_it.shape(),
                            view_of_it.stride());
  } else {
    return Tensor4<float>();
  }
}

/// The same with their types erased.
template <class Argument>
TensorRef input(const Argument& argument) {
  return TensorRef(input_view(argument));
}
template <class Argument>
TensorRef output(std::remove_reference_t<Argument>& argument) {
  return TensorRef(output_view<Argument>(argument));
}

// The sentence about a mask names its place, which only a literal can.
#define ATTN_REQUIRE_MASK_AT(place, next)                                                 \
  static_assert(kPlace != place || kIsMask || kIsOptions,                                 \
                "attn: argument " #place                                                  \
                " must be a mask of attn/mask.hpp; wrap a lambda in keep_if, drop_if or " \
                "modify_score, and a tensor in keep_where, drop_where or add_bias");      \
  static_assert(kPlace != place || !kIsOptions,                                           \
                "attn: options come " next                                                \
                ", behind the mask: give attn::no_mask() as argument " #place)

/// `mask`, argument kPlace of a function (1: its first), if it is one.
template <int kPlace, class M, class Nothing = Mask>
const auto& checked_mask(const M& mask) {
  static_assert(kPlace >= 2 && kPlace <= 6, "a place without a sentence");
  constexpr bool kIsMask = std::is_base_of_v<Mask, M>;
  constexpr bool kIsOptions = std::is_same_v<M, AttentionOptions>;
  ATTN_REQUIRE_MASK_AT(2, "third");
  ATTN_REQUIRE_MASK_AT(3, "fourth");
  ATTN_REQUIRE_MASK_AT(4, "fifth");
  ATTN_REQUIRE_MASK_AT(5, "sixth");
  ATTN_REQUIRE_MASK_AT(6, "seventh");
  if constexpr (kIsMask) {
    return mask;
  } else {
    static const Nothing none;
    return none;
  }
}

#undef ATTN_REQUIRE_MASK_AT

/// Other is the type of the argument that decides between the form that writes to out and the form
/// that returns its results, and is neither an output nor a mask.
template <class Other>
constexpr void refuse_neither_output_nor_mask() {
  constexpr bool is_options = std::is_same_v<Other, AttentionOptions>;
  static_assert(is_options || is_tensor_v<Other>,
                "attn: behind the inputs comes the output (an attn::Tensor4 view) or a mask (of "
                "attn/mask.hpp); a lambda goes through keep_if, drop_if or modify_score, a tensor "
                "through keep_where, drop_where or add_bias");
  static_assert(!is_options,
                "attn: options come behind the mask: give attn::no_mask() in front of them");
}

/// The extra outputs of a call whose sums are held in A.
template <class A, class Extra>
const AttentionOutputs<A>& extra_outputs(const Extra& extra) {
  constexpr bool fits = std::is_same_v<Extra, AttentionOutputs<A>>;
  static_assert(fits || !std::is_same_v<A, float>,
                "attn: the extra outputs of a call without a tensor of double are "
                "attn::AttentionOutputs<float>");
  static_assert(fits || !std::is_same_v<A, double>,
                "attn: the extra outputs of a call with a tensor of double are "
                "attn::AttentionOutputs<double>");
  if constexpr (fits) {
    return extra;
  } else {
    static const AttentionOutputs<A> none;
    return none;
  }
}

/// The results of attention of queries `q` [B, Hq, Sq, .], in buffers of their own: attend(out,
/// extra) writes them.
template <class T, class A, class F>
AttentionResult<T, A> returned(const Shape4& q, Index key_length, Index value_dim, Want want,
                               const F& attend) {
  AttentionResult<T, A> result;
  AttentionOutputs<A> extra;
  const auto allocate = [&q](auto& buffer, Index dim) {
    buffer = std::remove_reference_t<decltype(buffer)>(Shape4{q.batch, q.heads, q.length, dim});
  };
  allocate(result.output, value_dim);
  if (want & Want::weights) {
    allocate(result.weights, key_length);
    extra.weights = result.weights.view();
  }
  if (want & Want::log_sum_exp) {
    allocate(result.log_sum_exp, 1);
    extra.log_sum_exp = result.log_sum_exp.view();
  }
  attend(result.output, extra);
  return result;
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/merge.hpp - level 11: attention over two disjoint sets of keys, merged into attention over
// both.
#pragma once

#include <cmath>
#include <type_traits>

#include "attn/attention.hpp"
#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/arguments.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/convert.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"

namespace attn {
inline namespace ATTN_BUILD {

/// The exact union: w = exp(lse - max(lse_a, lse_b)), out = (w_a out_a + w_b out_b) / (w_a + w_b),
/// lse = log(exp(lse_a) + exp(lse_b)).
///
///   out_a, out_b, out   [B, H, S, D]
///   lse_a, lse_b, lse   [B, H, S, 1]
///
/// A part without keys (lse -infinity) leaves the other as it is; at most one part may hold the
/// sink. Merge more parts one after the other. out and lse may be out_a and lse_a (the same view);
/// other overlaps are refused. Sums are held in double if any argument is double, else in float.
/// Throws: ShapeError. Cost: 4 B H S D flops. Error: 4 epsilon relative to the larger part.
template <class OA, class LA, class OB, class LB, class O, class L>
void merge_attention(const OA& out_a, const LA& lse_a, const OB& out_b, const LB& lse_b, O&& out,
                     L&& lse) {
  using A = detail::AccumulationOf<OA, LA, OB, LB, O, L>;
  const auto o_a = detail::input_view(out_a);
  const auto o_b = detail::input_view(out_b);
  const auto l_a = detail::input_view(lse_a);
  const auto l_b = detail::input_view(lse_b);
  const auto o = detail::output_view<O>(out);
  const auto l = detail::output_view<L>(lse);

  detail::CallShapes call("merge_attention");
  // Every element is read before it is written, so the outputs may be part a itself.
  const auto is_same = [](const auto& x, const auto& y) {
    return static_cast<const void*>(x.data()) == static_cast<const void*>(y.data()) &&
           x.shape() == y.shape() && x.stride() == y.stride() &&
           sizeof(*x.data()) == sizeof(*y.data());
  };
  if (!is_same(o, o_a)) call.add_input("out_a", detail::TensorRef(o_a));
  if (!is_same(l, l_a)) call.add_input("lse_a", detail::TensorRef(l_a));
  call.add_input("out_b", detail::TensorRef(o_b));
  call.add_input("lse_b", detail::TensorRef(l_b));
  call.add_output("out", detail::TensorRef(o));
  call.add_output("lse", detail::TensorRef(l));
  const Shape4 shape = o.shape(), rows{shape.batch, shape.heads, shape.length, 1};
  call.expect(o_a.shape() == shape && o_b.shape() == shape,
              "out_a and out_b must have the shape of out");
  call.expect(l.shape() == rows && l_a.shape() == rows && l_b.shape() == rows,
              "lse_a, lse_b and lse must be [batch, heads, length of out, 1]");

  const auto weight = [](A part, A top) {
    return detail::is_negative_infinity(part) ? A(0) : std::exp(detail::as_written(part - top));
  };
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < shape.heads; ++h) {
      for (Index i = 0; i < shape.length; ++i) {
        const A a = static_cast<A>(l_a(b, h, i, 0)), c = static_cast<A>(l_b(b, h, i, 0));
        const A top = a < c ? c : a;
        const A weight_a = weight(a, top), weight_b = weight(c, top);
        const A sum = weight_a + weight_b;
        const bool none = detail::bits_of(sum) == 0;
        l(b, h, i, 0) = detail::round_to<detail::ElementOf<L>>(
            none ? detail::negative_infinity<A>() : top + std::log(detail::as_written(sum)));
        for (Index d = 0; d < shape.dim; ++d) {
          A value = 0;
          if (detail::bits_of(weight_a) != 0) value += weight_a * static_cast<A>(o_a(b, h, i, d));
          if (detail::bits_of(weight_b) != 0) value += weight_b * static_cast<A>(o_b(b, h, i, d));
          o(b, h, i, d) =
              detail::round_to<detail::ElementOf<O>>(none ? A(0) : value / detail::as_written(sum));
        }
      }
    }
  }
}

}  // namespace ATTN_BUILD
}  // namespace attn

// tests/mask_test/offsets.hpp - where the checks of a call find that its queries stand.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "attn/mask.hpp"
#include "mask_test/tiles.hpp"

namespace attn {

/// The offset of each batch that a call of this shape would use.
template <class M>
std::vector<Index> offsets_of(const M& mask, const Shapes& s,
                              const std::optional<PerBatch>& option = {}) {
  detail::CallShapes call("call");
  const Tensor4<const float> q(nullptr, {s.batch, s.heads, s.queries, 0});
  call.add_input("q", detail::TensorRef(q));
  detail::MaskChecker checker(call, {s.batch, s.heads, s.queries, s.keys},
                              double((std::numeric_limits<float>::max)()));
  if (option) checker.declare_offset("options.query_offset", *option);
  mask.declare(checker);
  const PerBatch offset = checker.resolve_offset();
  std::vector<Index> result;
  for (Index b = 0; b < s.batch; ++b) result.push_back(offset[b]);
  return result;
}

inline constexpr Shapes kShort{2, 3, 2, 5, 0}, kSquare{2, 3, 5, 5, 0};
using Offsets = std::vector<Index>;

}  // namespace attn

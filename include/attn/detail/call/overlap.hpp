// attn/detail/call/overlap.hpp - level 5: do two views share memory?
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>
#include <utility>

#include "attn/config.hpp"
#include "attn/detail/base/checked_size.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

constexpr bool is_empty(const Shape4& shape) {
  return shape.batch == 0 || shape.heads == 0 || shape.length == 0 || shape.dim == 0;
}

/// The bytes that a view may touch: [begin, end).
struct ByteRange {
  std::uintptr_t begin, end;

  explicit ByteRange(const TensorRef& t) {
    begin = end = reinterpret_cast<std::uintptr_t>(t.data);
    const auto element_size = static_cast<std::uintptr_t>(t.element_size());
    end += element_size;
    const auto extend = [&](Index extent, Index stride) {
      // Unsigned, so that strides of axes of length 1 may be anything.
      (stride < 0 ? begin : end) += static_cast<std::uintptr_t>(extent - 1) *
                                    static_cast<std::uintptr_t>(stride) * element_size;
    };
    extend(t.shape.batch, t.stride.batch);
    extend(t.shape.heads, t.stride.heads);
    extend(t.shape.length, t.stride.length);
    extend(t.shape.dim, t.stride.dim);
  }
};

/// Whether the elements of a view that is not empty lie within the reach of an Index of each other,
/// in bytes.
ATTN_COLD inline bool is_within_reach(const TensorRef& t) {
  const auto reach = [&](Index extent, Index stride) {
    if (extent == 1) return CheckedSize(0);  // any stride will do
    // -(stride + 1) + 1 is the magnitude of any negative stride.
    const CheckedSize magnitude =
        stride < 0 ? CheckedSize(-(stride + 1)) + Index{1} : CheckedSize(stride);
    return magnitude * (extent - 1) * t.element_size();
  };
  return (reach(t.shape.batch, t.stride.batch) + reach(t.shape.heads, t.stride.heads) +
          reach(t.shape.length, t.stride.length) + reach(t.shape.dim, t.stride.dim) +
          t.element_size())
      .fits();
}

/// Whether the memory of a workspace meets the bytes that a view may touch.
inline bool overlaps(const Workspace& workspace, const TensorRef& tensor) {
  if (workspace.data == nullptr || tensor.data == nullptr || is_empty(tensor.shape)) return false;
  const ByteRange range(tensor);
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  return range.begin < begin + workspace.bytes && begin < range.end;
}

/// Whether no size or offset that comes from this view can overflow; most views are so small. The
/// product of such extents, of the largest stride with each, and small multiples fit an Index.
inline bool is_small(const TensorRef& t) {
  constexpr Index kExtents = Index{1} << (sizeof(Index) * 8 / 4 - 2);  // 2^14
  constexpr Index kStrides = Index{1} << (sizeof(Index) * 8 / 2 + 2);  // 2^34
  const auto is_near = [](Index stride) { return stride > -kStrides && stride < kStrides; };
  const Shape4& s = t.shape;
  return (s.batch | s.heads | s.length | s.dim) < kExtents && is_near(t.stride.batch) &&
         is_near(t.stride.heads) && is_near(t.stride.length) && is_near(t.stride.dim);
}

struct OverlapAxis {
  Index stride, a, b;  // |stride|; extents in the two views
};

/// Whether index differences exist that bridge `distance` elements. Each axis reaches further than
/// all the later ones together, so at most two differences an axis can do.
inline bool can_bridge(const OverlapAxis* axis, const OverlapAxis* end, Index distance) {
  if (axis == end) return distance == 0;
  Index steps = distance / axis->stride;
  if (distance % axis->stride < 0) --steps;  // rounded down
  for (int i = 0; i < 2; ++i, ++steps) {
    // View a's index minus view b's lies in [-(b - 1), a - 1].
    if (steps > -axis->b && steps < axis->a &&
        can_bridge(axis + 1, end, distance - steps * axis->stride)) {
      return true;
    }
  }
  return false;
}

/// The rule of overlaps() for views whose address ranges intersect, as those of few calls do.
ATTN_COLD ATTN_NEVER_INLINE inline bool share_element(const TensorRef& a, const TensorRef& b) {
  if (a.element_size() != b.element_size()) return true;
  const Index extents_a[4] = {a.shape.batch, a.shape.heads, a.shape.length, a.shape.dim};
  const Index extents_b[4] = {b.shape.batch, b.shape.heads, b.shape.length, b.shape.dim};
  const Index strides_a[4] = {a.stride.batch, a.stride.heads, a.stride.length, a.stride.dim};
  const Index strides_b[4] = {b.stride.batch, b.stride.heads, b.stride.length, b.stride.dim};
  OverlapAxis axes[4];
  int count = 0;
  for (int i = 0; i < 4; ++i) {
    const bool single_a = extents_a[i] == 1, single_b = extents_b[i] == 1;
    if (single_a && single_b) continue;
    if (!single_a && !single_b && strides_a[i] != strides_b[i]) return true;
    Index stride = single_a ? strides_b[i] : strides_a[i];
    if (stride == 0) continue;  // the same element again
    // A negative stride is mirrored below: the lowest addresses are compared.
    if (stride < 0) stride = -stride;
    int place = count++;
    for (; place > 0 && axes[place - 1].stride < stride; --place) axes[place] = axes[place - 1];
    axes[place] = OverlapAxis{stride, extents_a[i], extents_b[i]};
  }
  Index reach_a = 0, reach_b = 0;  // of the axes below
  for (int i = count - 1; i >= 0; --i) {
    if (axes[i].stride <= reach_a || axes[i].stride <= reach_b) return true;  // does not nest
    reach_a += (axes[i].a - 1) * axes[i].stride;
    reach_b += (axes[i].b - 1) * axes[i].stride;
  }
  const Index bytes = static_cast<Index>(ByteRange(b).begin - ByteRange(a).begin);
  if (bytes % a.element_size() != 0) return true;
  return can_bridge(axes, axes + count, bytes / a.element_size());
}

/// Whether two views share an element. Views of one element size and equal strides (axes of length
/// 1 apart) that nest are told apart exactly, so interleaved slices of one packed buffer do not
/// overlap; for others, intersecting address ranges count as an overlap.
inline bool overlaps(const TensorRef& a, const TensorRef& b) {
  if (is_empty(a.shape) || is_empty(b.shape) || a.data == nullptr || b.data == nullptr) {
    return false;
  }
  const ByteRange range_a(a), range_b(b);
  if (range_a.end <= range_b.begin || range_b.end <= range_a.begin) return false;
  return share_element(a, b);
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

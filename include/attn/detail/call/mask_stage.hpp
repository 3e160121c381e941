// attn/detail/call/mask_stage.hpp - level 5: a mask as the driver sees it: a few functions behind
// pointers, called once a tile. The mask's own code, lambdas included, is inlined inside them; the
// driver and the kernels are compiled once for all masks.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {

template <class A>
class MaskStage {
 public:
  template <class M>
  explicit MaskStage(const M& mask)
      : mask_(&mask),
        modifies_(mask.modifies()),
        key_range_([](const void* m, const RowBlock& rows, Index key_length) {
          return static_cast<const M*>(m)->key_range(rows, key_length);
        }),
        cover_([](const void* m, const RowBlock& rows, KeyRange keys) {
          return static_cast<const M*>(m)->cover(rows, keys);
        }),
        modify_([](const void* m, const ScoreTile<A>& tile) {
          static_cast<const M*>(m)->modify(tile);
        }),
        apply_([](const void* m, const ScoreTile<A>& tile) {
          static_cast<const M*>(m)->apply(tile, false);
        }) {}

  bool modifies() const { return modifies_; }
  KeyRange key_range(const RowBlock& rows, Index key_length) const {
    return key_range_(mask_, rows, key_length);
  }
  Cover cover(const RowBlock& rows, KeyRange keys) const { return cover_(mask_, rows, keys); }
  void modify(const ScoreTile<A>& tile) const { modify_(mask_, tile); }
  void apply(const ScoreTile<A>& tile) const { apply_(mask_, tile); }

 private:
  const void* mask_;
  bool modifies_;
  KeyRange (*key_range_)(const void*, const RowBlock&, Index);
  Cover (*cover_)(const void*, const RowBlock&, KeyRange);
  void (*modify_)(const void*, const ScoreTile<A>&);
  void (*apply_)(const void*, const ScoreTile<A>&);
};

}  // namespace detail
}  // namespace attn

// attn/detail/call/mask_stage.hpp - level 5: a mask as the driver sees it: a few functions behind
// pointers, called once a tile. The mask's own code, lambdas included, is inlined inside them; the
// driver and the kernels are compiled once for all masks.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <type_traits>
#include <utility>

#include "attn/config.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

template <class M, class A, class = void>
inline constexpr bool has_reapply_v = false;
template <class M, class A>
inline constexpr bool has_reapply_v<
    M, A, std::void_t<decltype(std::declval<const M&>().reapply(std::declval<ScoreTile<A>>()))>> =
    true;

/// apply() where a mask to the right has changed the scores since modify(): masks that drop keys by
/// modify() alone do it again.
template <class M, class A>
void reapply(const M& mask, const ScoreTile<A>& tile) {
  if constexpr (has_reapply_v<M, A>) {
    mask.reapply(tile);
  } else {
    mask.apply(tile);
  }
}

template <class M, class = void>
inline constexpr bool has_keys_within_v = false;
template <class M>
inline constexpr bool
    has_keys_within_v<M, std::void_t<decltype(std::declval<const M&>().keys_within(
                             std::declval<const RowBlock&>(), KeyRange{}, Index{}))>> = true;

/// Which of `keys`, of 0 .. key_length - 1, can matter to these rows. Masks that leave gaps tell by
/// themselves; of the others, what key_range leaves.
template <class M>
ATTN_ALWAYS_INLINE KeyRange keys_within(const M& mask, const RowBlock& rows, KeyRange keys,
                                        Index key_length) {
  if constexpr (has_keys_within_v<M>) {
    return keys.empty() ? keys : keys & mask.keys_within(rows, keys, key_length);
  } else {
    return keys & mask.key_range(rows, key_length);
  }
}

}  // namespace ATTN_BUILD

/// What a mask does, its type erased: the functions of the file that made the mask.
template <class A>
struct MaskFunctions {
  bool (*modifies)(const void*);
  KeyRange (*keys_within)(const void*, const RowBlock&, KeyRange, Index);
  RowRange (*row_range)(const void*, const RowBlock&, KeyRange);
  Cover (*cover)(const void*, const RowBlock&, KeyRange);
  void (*modify)(const void*, const ScoreTile<A>&);
  void (*apply)(const void*, const ScoreTile<A>&);
  void (*reapply)(const void*, const ScoreTile<A>&);
};

inline namespace ATTN_BUILD {

template <class A, class M>
struct MaskFunctionsOf {
  static const M& as_mask(const void* mask) { return *static_cast<const M*>(mask); }

  static constexpr MaskFunctions<A> kFunctions = {
      [](const void* mask) { return as_mask(mask).modifies(); },
      [](const void* mask, const RowBlock& rows, KeyRange keys, Index key_length) {
        return detail::keys_within(as_mask(mask), rows, keys, key_length);
      },
      [](const void* mask, const RowBlock& rows, KeyRange keys) {
        return as_mask(mask).row_range(rows, keys);
      },
      [](const void* mask, const RowBlock& rows, KeyRange keys) {
        return as_mask(mask).cover(rows, keys);
      },
      [](const void* mask, const ScoreTile<A>& tile) { as_mask(mask).modify(tile); },
      [](const void* mask, const ScoreTile<A>& tile) { as_mask(mask).apply(tile); },
      [](const void* mask, const ScoreTile<A>& tile) { detail::reapply(as_mask(mask), tile); }};
};

}  // namespace ATTN_BUILD

template <class A>
class MaskStage {
 public:
  /// `mask` outlives the stage.
  template <class M>
  ATTN_ALWAYS_INLINE explicit MaskStage(const M& mask)
      : mask_(&mask), functions_(&MaskFunctionsOf<A, M>::kFunctions) {}

  ATTN_ALWAYS_INLINE bool modifies() const { return functions_->modifies(mask_); }
  ATTN_ALWAYS_INLINE KeyRange keys_within(const RowBlock& rows, KeyRange keys,
                                          Index key_length) const {
    return functions_->keys_within(mask_, rows, keys, key_length);
  }
  ATTN_ALWAYS_INLINE RowRange row_range(const RowBlock& rows, KeyRange keys) const {
    return functions_->row_range(mask_, rows, keys);
  }
  ATTN_ALWAYS_INLINE Cover cover(const RowBlock& rows, KeyRange keys) const {
    return functions_->cover(mask_, rows, keys);
  }
  ATTN_ALWAYS_INLINE void modify(const ScoreTile<A>& tile) const {
    functions_->modify(mask_, tile);
  }
  ATTN_ALWAYS_INLINE void apply(const ScoreTile<A>& tile) const { functions_->apply(mask_, tile); }
  ATTN_ALWAYS_INLINE void reapply(const ScoreTile<A>& tile) const {
    functions_->reapply(mask_, tile);
  }

 private:
  const void* mask_;
  const MaskFunctions<A>* functions_;
};

}  // namespace detail
}  // namespace attn

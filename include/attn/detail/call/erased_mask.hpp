// attn/detail/call/erased_mask.hpp - level 5: a mask as the checks and the driver take it, its type
// erased.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/call/mask_checker.hpp"
#include "attn/detail/call/mask_stage.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// What a mask declares to a MaskChecker, its type erased: the checks are compiled once for all
/// masks.
class MaskDeclaration {
 public:
  /// `mask` outlives this.
  template <class M, class = std::enable_if_t<!std::is_base_of_v<MaskDeclaration, M>>>
  MaskDeclaration(const M& mask)
      : mask_(&mask), declare_([](const void* m, MaskChecker& checker) {
          static_cast<const M*>(m)->declare(checker);
        }) {}

  void declare(MaskChecker& checker) const { declare_(mask_, checker); }

 private:
  const void* mask_;
  void (*declare_)(const void*, MaskChecker&);
};

/// The same with what the mask does in a call that sums in A.
template <class A>
class ErasedMask : public MaskDeclaration {
 public:
  template <class M, class = std::enable_if_t<!std::is_base_of_v<MaskDeclaration, M>>>
  ErasedMask(const M& mask) : MaskDeclaration(mask), stage_(mask) {}

  const MaskStage<A>& stage() const { return stage_; }

 private:
  MaskStage<A> stage_;
};
/// As a parameter that any mask converts to: A follows from other arguments.
template <class A>
struct MaskParameter {
  using Type = ErasedMask<A>;
};
template <class A>
using MaskOf = typename MaskParameter<A>::Type;

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

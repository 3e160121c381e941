// attn/detail/projection/linear_engine.hpp - level 13: what computes the items of products. A file
// that uses the compiled library finds it there.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/projection/linear_plan.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_ENGINE {

/// One work item of a product, in `memory` for a LinearScratch. `converted`: what the dim-lane form
/// reads as its tokens.
template <class A>
void multiply_item(const LinearCall<A>& call, const A* converted, Index item, void* memory);

}  // namespace ATTN_ENGINE
}  // namespace detail
}  // namespace attn

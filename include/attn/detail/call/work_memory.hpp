// attn/detail/call/work_memory.hpp - level 5: the memory that a call works in.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstddef>
#include <cstdint>
#include <new>

#include "attn/config.hpp"
#include "attn/detail/call/arena.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// The caller's workspace, or memory of our own for the time of the call.
class WorkMemory {
 public:
  /// `query`: the function that tells how many bytes such a call needs.
  WorkMemory(const CallShapes& call, const Workspace& workspace, std::size_t bytes,
             const FunctionName& query = "attention_workspace_bytes") {
    if (workspace.data == nullptr && workspace.bytes != 0) {
      call.raise_option(
          {"options.workspace is null, but says that it holds ", workspace.bytes, " bytes"});
    }
    if (workspace.data != nullptr) call.require_apart_from(workspace);
    if (bytes == 0) return;
    if (workspace.data == nullptr) {
      owned_ = ::operator new (bytes, std::align_val_t{Arena::kAlignment});
      data_ = owned_;
      return;
    }
    const std::size_t misaligned =
        reinterpret_cast<std::uintptr_t>(workspace.data) % Arena::kAlignment;
    const std::size_t skip = misaligned == 0 ? 0 : Arena::kAlignment - misaligned;
    if (workspace.bytes < bytes + skip) {
      call.raise_option({"options.workspace is too small: ", query.text(), " asks for ",
                         bytes + Arena::kAlignment, " bytes, got ", workspace.bytes});
    }
    data_ = static_cast<char*>(workspace.data) + skip;
  }
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;
  ~WorkMemory() {
    if (owned_ != nullptr) ::operator delete (owned_, std::align_val_t{Arena::kAlignment});
  }

  void* data() const { return data_; }

 private:
  void* owned_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

// attn/detail/call/call_shapes.hpp - level 5: the tensors of one call, by name, and its error
// texts.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>
#include <cstdlib>
#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/overlap.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/text_parts.hpp"
#include "attn/error.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// What a tensor is to a call.
enum class Role : unsigned char { input, output, keep_mask, drop_mask, bias };

/// How error texts spell a function. The text is made only where an error is raised.
struct FunctionName {
  const char* owner = nullptr;  ///< its class; null: none
  const char* name;

  FunctionName(const char* name_) : name(name_) {}
  FunctionName(const char* owner_, const char* name_) : owner(owner_), name(name_) {}

  ATTN_COLD std::string text() const {
    std::string text;
    if (owner != nullptr) append(text, {owner, "::"});
    append(text, {name});
    return text;
  }
};

struct NamedTensor {
  const char* name = nullptr;
  TensorRef tensor;
  Shape4 shape;  ///< as the texts spell it
  Role role = Role::input;
};

/// Collects the tensors of a call, so that each error text names the function, the rule and every
/// shape. No text is built unless something is wrong.
class CallShapes {
 public:
  explicit CallShapes(const FunctionName& function) : function_(function) {}

  /// Adds an input, validates its extents and pointer, and tests it against the outputs so far.
  void add_input(const char* name, const TensorRef& tensor) {
    add_input(name, tensor, tensor.shape);
  }
  /// The same for storage of which the call sees `shape`.
  void add_input(const char* name, const TensorRef& tensor, const Shape4& shape,
                 Role role = Role::input) {
    add(NamedTensor{name, tensor, shape, role});
    for (int i = 0; i + 1 < count_; ++i) {
      if (tensors_[i].role == Role::output) require_apart(tensors_[i], tensors_[count_ - 1]);
    }
  }
  /// The same for a mask or bias.
  void add_mask(const char* name, const TensorRef& tensor, Role role) {
    add_input(name, tensor, tensor.shape, role);
  }
  /// Adds an output, validates it, and tests it against everything so far.
  void add_output(const char* name, const TensorRef& tensor) {
    add(NamedTensor{name, tensor, tensor.shape, Role::output});
    const Shape4& shape = tensor.shape;
    const Stride4& stride = tensor.stride;
    if (!is_empty(shape) &&
        ((shape.batch > 1 && stride.batch == 0) || (shape.heads > 1 && stride.heads == 0) ||
         (shape.length > 1 && stride.length == 0) || (shape.dim > 1 && stride.dim == 0))) {
      raise_shape({"an axis of ", name,
                   " longer than 1 has stride 0: its elements would be written over each other"});
    }
    for (int i = 0; i + 1 < count_; ++i) require_apart(tensors_[count_ - 1], tensors_[i]);
  }
  /// Refuses a workspace that overlaps any of the tensors so far.
  void require_apart_from(const Workspace& workspace) const {
    for (int i = 0; i < count_; ++i) {
      if (overlaps(workspace, tensors_[i].tensor)) {
        raise_shape({"options.workspace overlaps ", tensors_[i].name, " in memory"});
      }
    }
  }

  /// From now on the call is about one sequence of a ragged batch.
  void set_sequence(Index sequence, Index query_length, Index key_length) {
    sequence_ = sequence;
    query_length_ = query_length;
    key_length_ = key_length;
  }
  /// The batches that the call computes, of `all`.
  KeyRange batches(Index all) const {
    return sequence_ < 0 ? KeyRange{0, all} : KeyRange{sequence_, sequence_ + 1};
  }

  /// Refuses a tensor so large that sizes of its copies could overflow.
  void require_possible(const char* name, const Shape4& shape) const {
    if (!is_possible(shape, kCopyBytes) || !is_possible({1, 1, 1, shape.dim}, kRowBytes)) {
      raise_shape({name, " ", shape, " is too large: sizes in bytes overflow"});
    }
  }
  void expect(bool holds, const char* rule) const {
    if (!holds) raise_shape(rule);
  }

  /// The tensors so far, in their order.
  Span<const NamedTensor> tensors() const { return Span<const NamedTensor>(tensors_, count_); }

  [[noreturn]] ATTN_COLD ATTN_NEVER_INLINE void raise_shape(TextParts rule) const {
    raise_shape_(message(rule));
    std::abort();
  }
  [[noreturn]] ATTN_COLD ATTN_NEVER_INLINE void raise_option(TextParts rule) const {
    raise_option_(message(rule));
    std::abort();
  }
  /// A rule in one part.
  [[noreturn]] ATTN_COLD void raise_shape(const TextPart& rule) const {
    raise_shape(TextParts{rule});
  }
  [[noreturn]] ATTN_COLD void raise_option(const TextPart& rule) const {
    raise_option(TextParts{rule});
  }

 private:
  static constexpr int kMaxTensors = 24;
  // Copies are held as double, up to eight of an element's size and, for each worker, of some rows
  // (tiles of up to 4096, by up to 256 workers). Memory cannot hold tensors beyond these bounds;
  // views with strides of 0 can name them.
  static constexpr Index kCopyBytes = 8 * Index{sizeof(double)};
  static constexpr Index kRowBytes = Index{4096} * 256 * Index{sizeof(double)};

  void add(const NamedTensor& added) {
    if (count_ == kMaxTensors) {  // more masks than that: keep the newest input in the last place
      --count_;
    }
    tensors_[count_++] = added;
    const Shape4& s = added.tensor.shape;
    if (s.batch < 0 || s.heads < 0 || s.length < 0 || s.dim < 0) {
      raise_shape({added.name, " has a negative extent"});
    }
    if (!is_small(added.tensor)) require_within_reach(added);
    if (added.tensor.data == nullptr && !is_empty(s)) {
      raise_shape({added.name, " is not empty, but its pointer is null"});
    }
  }

  ATTN_COLD ATTN_NEVER_INLINE void require_within_reach(const NamedTensor& added) const {
    require_possible(added.name, added.tensor.shape);
    if (is_empty(added.tensor.shape) || is_within_reach(added.tensor)) return;
    const Stride4& stride = added.tensor.stride;
    const Shape4 strides{stride.batch, stride.heads, stride.length, stride.dim};
    raise_shape(
        {added.name, " has strides ", strides, ", which lead too far: offsets in bytes overflow"});
  }
  void require_apart(const NamedTensor& output, const NamedTensor& other) const {
    if (overlaps(output.tensor, other.tensor)) {
      raise_shape({output.name, " overlaps ", other.name, " in memory"});
    }
  }

  ATTN_COLD std::string message(TextParts rule) const {
    std::string text = function_.text();
    append(text, {": "});
    append(text, rule);
    for (int i = 0; i < count_; ++i) {
      append(text, {i == 0 ? "; got " : ", ", tensors_[i].name, " ", tensors_[i].shape});
    }
    if (sequence_ >= 0) {
      append(text, {", sequence ", sequence_, " of ", query_length_, " queries and ", key_length_,
                    " keys"});
    }
    return text;
  }

  // A mask may have been made, and checks itself, in a file that raises otherwise.
  void (*raise_shape_)(const std::string&) = &raise_shape_error;
  void (*raise_option_)(const std::string&) = &raise_option_error;
  FunctionName function_;
  NamedTensor tensors_[kMaxTensors];
  int count_ = 0;
  Index sequence_ = -1;  // all batches
  Index query_length_ = 0, key_length_ = 0;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

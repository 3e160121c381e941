// attn/detail/caches/token_checks.hpp - level 10: what can be wrong with the arguments of a cache's
// functions.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <string>

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/text_parts.hpp"
#include "attn/error.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Checks the shapes of k [sequences, Hk, n, Dk] and v [sequences, Hv, n, Dv] against the storage
/// of a cache.
inline void check_token_shapes(const CallShapes& call, const TensorRef& keys,
                               const TensorRef& values, Index sequences, const TensorRef& k,
                               const TensorRef& v) {
  if (k.shape.batch != sequences || v.shape.batch != sequences) {
    call.raise_shape("k and v must have one batch a sequence, " + std::to_string(sequences));
  }
  call.expect(k.shape.length == v.shape.length, "k and v must have the same length");
  call.expect(k.shape.heads == keys.shape.heads && v.shape.heads == values.shape.heads,
              "k and v must have the heads of the cache");
  call.expect(k.shape.dim == keys.shape.dim && v.shape.dim == values.shape.dim,
              "k and v must have the dims of the cache");
}

/// Refuses keys without values where there are values, and values where they lie in the keys.
inline void check_form(const char* function, bool values_in_keys, bool keys_alone) {
  if (values_in_keys == keys_alone) return;
  raise_shape_error(std::string(function) +
                    (values_in_keys
                         ? ": the values of this cache are the first elements of its keys: it "
                           "takes keys alone, without v"
                         : ": the values of this cache do not lie in its keys: it takes k and v"));
}

/// Checks how many of `length` tokens of each sequence are real; `name`: of their tensor.
inline void check_counts(const CallShapes& call, const PerBatch& counts, Index sequences,
                         Index length, const char* name) {
  if (!counts.is_scalar() && counts.size() != sequences) {
    call.raise_shape({"counts must hold one number, or one each sequence, ", sequences, ", got ",
                      counts.size()});
  }
  for (Index i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > length) {
      call.raise_shape({"counts must lie within 0 and the length of ", name, ", got ", counts[i]});
    }
  }
}

/// Checks tokens that a cache is to store: of sequence i the last counts[i].
inline void check_tokens(CallShapes& call, const TensorRef& keys, const TensorRef& values,
                         Index sequences, const TensorRef& k, const TensorRef& v,
                         const PerBatch& counts, bool values_in_keys) {
  call.add_output("cached keys", keys);
  if (!values_in_keys) call.add_output("cached values", values);
  call.add_input("k", k);
  if (!values_in_keys) call.add_input("v", v);
  check_token_shapes(call, keys, values, sequences, k, v);
  check_counts(call, counts, sequences, k.shape.length, "k");
}

/// Checks the tensors that tokens of a cache are to be written to, up to `longest` of a sequence.
inline void check_saved(CallShapes& call, const TensorRef& keys, const TensorRef& values,
                        Index sequences, const TensorRef& k, const TensorRef& v, Index longest,
                        bool values_in_keys) {
  call.add_input("cached keys", keys);
  if (!values_in_keys) call.add_input("cached values", values);
  call.add_output("k", k);
  if (!values_in_keys) call.add_output("v", v);
  check_token_shapes(call, keys, values, sequences, k, v);
  if (k.shape.length < longest) {
    call.raise_shape("k and v must have room for the tokens that are held, up to " +
                     std::to_string(longest) + " of a sequence");
  }
}

inline void check_lengths(const CallShapes& call, const PerBatch& lengths, Index sequences) {
  if (lengths.is_scalar() || lengths.size() == sequences) return;
  call.raise_shape("lengths must hold one number, or one each sequence, " +
                   std::to_string(sequences) + ", got " + std::to_string(lengths.size()));
}

/// Checks a sequence that is to have `length` tokens, of which `count` are given and `needed`
/// must be.
inline void check_restored(const CallShapes& call, Index b, Index length, Index count, Index needed,
                           Index capacity) {
  const auto sequence = [&] {
    return "sequence " + std::to_string(b) + " of " + std::to_string(length) + " tokens ";
  };
  if (length < 0 || length > capacity) {
    call.raise_shape(sequence() + "cannot be: lengths must lie within 0 and " +
                     std::to_string(capacity));
  }
  if (count > length || count < needed) {
    call.raise_shape(sequence() + "needs between " + std::to_string(needed) + " and " +
                     std::to_string(length) + " of them, got " + std::to_string(count));
  }
}

/// Checks the lengths to which sequences are cut.
inline void check_truncation(const char* function, Span<const Index> held, const PerBatch& length) {
  if (!length.is_scalar() && length.size() != held.size()) {
    raise_shape_error(std::string(function) + ": needs one length, or one each sequence, " +
                      std::to_string(held.size()) + ", got " + std::to_string(length.size()));
  }
  for (Index b = 0; b < held.size(); ++b) {
    if (length[b] < 0 || length[b] > held[b]) {
      raise_shape_error(std::string(function) + ": sequence " + std::to_string(b) + " holds " +
                        std::to_string(held[b]) + " tokens and cannot be cut to " +
                        std::to_string(length[b]));
    }
  }
}

inline void check_sequence(const char* function, Index b, Index batch) {
  if (b < 0 || b >= batch) {
    raise_shape_error(std::string(function) + ": there is no sequence " + std::to_string(b) +
                      " among the " + std::to_string(batch) + " of the cache");
  }
}

/// Refuses `count` tokens more of sequence b than its capacity leaves room for.
inline void require_room(const CallShapes& call, Index b, Index held, Index count, Index capacity) {
  if (count <= capacity - held) return;
  call.raise_shape("append past capacity: sequence " + std::to_string(b) + " holds " +
                   std::to_string(held) + " of " + std::to_string(capacity) + " tokens, " +
                   std::to_string(count) + " more do not fit");
}

[[noreturn]] ATTN_COLD inline void raise_keep_error(const char* function, TextParts parts) {
  std::string text = std::string(function) + ": ";
  append(text, parts);
  raise_shape_error(text);
}

/// Checks which tokens of a sequence of `length` stay.
inline void check_kept(const char* function, Span<const Index> tokens, Index length) {
  Index least = 0;
  for (Index i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < least || tokens[i] >= length) {
      raise_keep_error(function, {"tokens must ascend within 0 and the length of the sequence, ",
                                  length, ", got ", tokens[i], " as number ", i});
    }
    least = tokens[i] + 1;
  }
}

/// Checks a rotary embedding that is to turn moved keys.
template <class Rotary>
void check_turn(const char* function, const Rotary& rotary, Index head_dim, bool values_in_keys) {
  if (values_in_keys) {
    raise_keep_error(function, {"keys cannot be turned where their elements are values too"});
  }
  if (rotary.head_dim() != head_dim) {
    raise_keep_error(function, {"the rotary embedding must have the head_dim of the cache, ",
                                head_dim, ", not ", rotary.head_dim()});
  }
  if (rotary.frequencies().empty()) {
    raise_keep_error(function,
                     {"a rotary embedding of given tables does not tell by what angle a key that "
                      "has moved must be turned: make it of frequencies"});
  }
}

/// Checks from whom the sequences of a cache take their tokens.
inline void check_parents(const char* function, Span<const Index> parents, Index batch) {
  if (parents.size() != batch) {
    raise_shape_error(std::string(function) + ": needs one parent a sequence, " +
                      std::to_string(batch) + ", got " + std::to_string(parents.size()));
  }
  for (Index b = 0; b < batch; ++b) {
    if (parents[b] < 0 || parents[b] >= batch) {
      raise_shape_error(std::string(function) + ": the parent of sequence " + std::to_string(b) +
                        " must be one of the " + std::to_string(batch) + " of the cache, got " +
                        std::to_string(parents[b]));
    }
  }
}

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

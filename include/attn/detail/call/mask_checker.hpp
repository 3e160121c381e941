// attn/detail/call/mask_checker.hpp - level 5: what masks tell the checks of a call, and where
// query positions come from.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <optional>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/mask_stage.hpp"
#include "attn/detail/text/text_parts.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Gathers what the masks of a call say. One query position p(b, i) = i + offset(b) serves causal
/// masks, windows, ALiBi and lambdas; the offset comes from, in this order: a causal mask that says
/// so, options.query_offset, the past of a cache, Sk - Sq. Two that are given must agree.
class MaskChecker {
 public:
  enum class Need { any_offset, explicit_offset };

  /// `scores`: (B, Hq, Sq, Sk). `largest`: the largest finite value of the accumulation type.
  MaskChecker(CallShapes& call, Shape4 scores, double largest)
      : call_(call), scores_(scores), largest_(largest) {}

  /// This mask depends on positions. `explicit_offset`: it refuses the default unless Sq == Sk.
  void use_position(const char* mask, Need need = Need::any_offset) {
    position_user_ = mask;
    if (need == Need::explicit_offset) needs_offset_ = true;
  }

  /// This mask (or option) says where query 0 stands.
  void declare_offset(const char* mask, const PerBatch& offset) {
    check_per_batch(mask, offset);
    if (offset_ && differ(*offset_, offset)) {
      call_.raise_option({offset_name_, " and ", mask, " give different positions to the queries"});
    }
    if (!offset_) offset_name_ = mask;
    offset_ = offset;
    has_value_ = true;
  }
  void declare_offset_of_mask(const char* mask, const PerBatch& offset) {
    position_user_ = mask;
    declare_offset(mask, offset);
  }
  void declare_bottom_right(const char* mask) {
    const bool had_value = has_value_;
    // A cache knows the last key of each sequence, and that is where its last query stands.
    declare_offset_of_mask(mask, past_ ? *past_ : PerBatch(scores_.dim - scores_.length));
    has_value_ = had_value;  // Sk - Sq: does not say whether Sk counts the padding
  }
  /// The past of a cache: used if nothing else is said.
  void set_past(const PerBatch& past) { past_ = past; }
  /// Sizes memory: the cache need not hold its keys yet.
  void set_sizing() { is_sizing_ = true; }

  void use_key_lengths(const PerBatch& lengths) {
    check_per_batch("key_lengths", lengths);
    for_each_batch([&](Index b) {
      if (lengths[b] < 0 || lengths[b] > scores_.dim) {
        raise_option({"key_lengths must lie within 0 and the number of keys ", scores_.dim,
                      ", got ", lengths[b], " for batch ", b});
      }
    });
    lengths_user_ = "key_lengths";
  }
  void use_first_keys(const PerBatch& count) {
    check_per_batch("first_keys(count)", count);
    for_each_batch([&](Index b) {
      if (count[b] < 0) {
        raise_option({"first_keys(count) takes 0 or more keys, got ", count[b], " for batch ", b});
      }
    });
  }
  void use_keys_between(const PerBatch& begin, const PerBatch& end, Index unlimited) {
    check_per_batch("the begin of keys_between(begin, end)", begin);
    check_per_batch("the end of keys_between(begin, end)", end);
    for_each_batch([&](Index b) {
      const Index last = end[b] == unlimited ? scores_.dim : end[b];
      if (begin[b] < 0 || begin[b] > last || (last > scores_.dim && !is_sizing_)) {
        raise_option({"keys_between(begin, end) needs 0 <= begin <= end <= the number of keys ",
                      scores_.dim, " (an end of kUnlimited: all), got begin ", begin[b], ", end ",
                      last, " for batch ", b});
      }
      if (last < scores_.dim && !is_side_) lengths_user_ = "keys_between()";
    });
  }

  /// A mask or bias tensor: [B|1, Hq|1, Sq|1, Sk|1].
  void check_score_view(const char* name, const TensorRef& view, Role role) {
    call_.add_mask(name, view, is_side_ ? Role::input : role);
    if (!fits_rows(view.shape) || (view.shape.dim != 1 && view.shape.dim != scores_.dim)) {
      call_.raise_shape({"the ", name,
                         " must have the shape of the scores, or 1, on every axis: scores ",
                         scores_});
    }
  }

  /// One id a token: [B|1, 1, S, 1], of the queries or of the keys.
  void check_ids(const char* name, const TensorRef& view, bool are_keys) {
    add_tokens(name, view);
    const Index tokens = are_keys ? scores_.dim : scores_.length;
    if (view.shape.length == tokens || is_sizing_) return;
    call_.raise_shape({name, " must hold one number a ", are_keys ? "key, " : "query, ", tokens,
                       ", got ", view.shape.length});
  }
  /// The same of queries that are the keys.
  void check_shared_ids(const char* name, const TensorRef& view) {
    add_tokens(name, view);
    const Index queries = scores_.length, keys = scores_.dim;
    if ((queries == keys && view.shape.length == keys) || is_sizing_) return;
    call_.raise_shape({name,
                       " must hold one number a token, for as many queries as keys: there are ",
                       queries, " and ", keys, ", and ", view.shape.length,
                       " ids; give those of queries and keys each, as same_segment(query_ids, "
                       "key_ids)"});
  }

  /// One side of a union: a mask that keeps or drops keys, and does nothing else.
  template <class M>
  void declare_side(const M& mask) {
    if (mask.modifies()) {
      raise_option(
          {"one of the masks in a union (|) adds biases or changes scores: combine such "
           "masks with & outside the union, whose sides only keep or drop keys"});
    }
    const bool was_side = is_side_;
    is_side_ = true;
    mask.declare(*this);
    is_side_ = was_side;
  }

  /// One finite number a query head.
  void check_per_head(const char* name, Span<const double> values, bool allow_minus_infinity) {
    if (values.size() != scores_.heads) {
      call_.raise_shape(
          {name, " must hold one number a query head, ", scores_.heads, ", got ", values.size()});
    }
    for (const double value : values) {
      if (allow_minus_infinity && is_negative_infinity(value)) continue;
      if (!is_finite(value) || value > largest_ || value < -largest_) {
        call_.raise_option({name, " must be finite in the accumulation type, got ", value});
      }
    }
  }

  /// One number, or one each batch of q.
  void check_per_batch(const char* name, const PerBatch& values) {
    if (!values.is_scalar() && values.size() != scores_.batch) {
      call_.raise_shape({name, " must hold one number, or one each batch of q, ", scores_.batch,
                         ", got ", values.size()});
    }
  }

  [[noreturn]] void raise_option(TextParts rule) const { call_.raise_option(rule); }

  /// After all masks: the offset of the queries.
  PerBatch resolve_offset() const {
    const Index queries = scores_.length, keys = scores_.dim;
    if (position_user_ != nullptr && lengths_user_ != nullptr && queries != keys && !has_value_ &&
        !past_) {
      call_.raise_shape({position_user_, " with ", lengths_user_,
                         " and a query length that is not the key length: say where the queries "
                         "stand, as causal_from(offset) or options.query_offset (length - Sq: at "
                         "the end of the valid keys)"});
    }
    if (needs_offset_ && queries != keys && !offset_ && !past_) {
      call_.raise_shape(
          "causal() needs as many queries as keys, or a position: use causal_top_left() (offset "
          "0), "
          "causal_bottom_right() (offset Sk - Sq), causal_from(offset) or options.query_offset");
    }
    if (offset_) return *offset_;
    if (needs_offset_ && past_ && !is_sizing_ && all_negative(*past_)) {
      call_.raise_shape(
          "causal() over a cache of which no sequence holds as many tokens as q has: append the "
          "keys and values of these tokens first, or say where the queries stand, as "
          "causal_from(offset) or options.query_offset");
    }
    if (past_) return *past_;
    return PerBatch(keys - queries);
  }

 private:
  template <class F>
  void for_each_batch(const F& f) const {
    const KeyRange batches = call_.batches(scores_.batch);
    for (Index batch = batches.begin; batch < batches.end; ++batch) f(batch);
  }
  void add_tokens(const char* name, const TensorRef& view) {
    call_.add_mask(name, view, Role::input);
    const Shape4& s = view.shape;
    if ((s.batch != 1 && s.batch != scores_.batch) || s.heads != 1 || s.dim != 1) {
      call_.raise_shape({name,
                         " must be [batch of q or 1, 1, number of tokens, 1], the batch of q is ",
                         scores_.batch});
    }
  }
  /// Whether a tensor fits the scores on the axes before the keys', as [B|1, Hq|1, Sq|1, .].
  bool fits_rows(const Shape4& s) const {
    return (s.batch == 1 || s.batch == scores_.batch) &&
           (s.heads == 1 || s.heads == scores_.heads) &&
           (s.length == 1 || s.length == scores_.length);
  }
  bool all_negative(const PerBatch& numbers) const {
    const KeyRange batches = call_.batches(scores_.batch);
    for (Index batch = batches.begin; batch < batches.end; ++batch) {
      if (numbers[batch] >= 0) return false;
    }
    return batches.size() == scores_.batch && scores_.batch > 0;  // not one of a ragged batch
  }
  bool differ(const PerBatch& a, const PerBatch& b) const {
    const KeyRange batches = call_.batches(scores_.batch);
    for (Index batch = batches.begin; batch < batches.end; ++batch) {
      if (a[batch] != b[batch]) return true;
    }
    return false;
  }

  CallShapes& call_;
  Shape4 scores_;
  double largest_;
  std::optional<PerBatch> offset_, past_;
  const char* offset_name_ = nullptr;
  const char* position_user_ = nullptr;
  bool has_value_ = false;  // an offset was given as a number, not as Sk - Sq
  bool needs_offset_ = false;
  const char* lengths_user_ = nullptr;  // what says that valid keys may end before Sk
  bool is_sizing_ = false;
  bool is_side_ = false;  // of a union: what this mask drops others may keep
};

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

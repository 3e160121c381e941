// attn/detail/call/mask_checker.hpp - level 5: what masks tell the checks of a call, and where
// query positions come from.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <optional>

#include "attn/config.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/call/mask_shapes.hpp"
#include "attn/detail/text/text_parts.hpp"
#include "attn/options.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Gathers what the masks of a call say: each is asked to declare() itself. One query position p(b,
/// i) = i + offset(b) serves causal masks, windows, ALiBi and lambdas; the offset comes from, in
/// this order: a causal mask that says so, options.query_offset, the past of a cache, Sk - Sq. Two
/// that are given must agree.
class MaskChecker : public MaskShapes {
 public:
  enum class Need { any_offset, explicit_offset };

  using MaskShapes::MaskShapes;

  /// This mask depends on positions. `explicit_offset`: it refuses the default unless Sq == Sk.
  void use_position(const char* mask, Need need = Need::any_offset) {
    position_user_ = mask;
    if (need == Need::explicit_offset) needs_offset_ = true;
  }

  /// This mask (or option) says where query 0 stands.
  void declare_offset(const char* mask, const PerBatch& offset) {
    check_per_batch(mask, offset);
    set_offset(mask, offset);
    has_value_ = true;
  }
  void declare_offset_of_mask(const char* mask, const PerBatch& offset) {
    position_user_ = mask;
    if (is_repeated() && !offset.is_scalar()) {
      raise_option({mask,
                    " inside repeat_batch takes one number: queries stand where their own batch of "
                    "the call says"});
    }
    declare_offset(mask, offset);
  }
  void declare_bottom_right(const char* mask) {
    position_user_ = mask;
    // A cache knows the last key of each sequence, and that is where its last query stands.
    // Sk - Sq does not say whether Sk counts the padding: it is no value.
    set_offset(mask, past_ ? *past_ : PerBatch(scores_.dim - scores_.length));
  }
  /// Queries of padding may stand before all keys.
  void allow_padding() { has_padding_ = true; }
  /// The past of a cache: used if nothing else is said.
  void set_past(const PerBatch& past) { past_ = past; }

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
      const bool is_ordered = begin[b] <= last || (end[b] == unlimited && is_sizing_);
      if (begin[b] < 0 || !is_ordered || (last > scores_.dim && !is_sizing_)) {
        raise_option({"keys_between(begin, end) needs 0 <= begin <= end <= the number of keys ",
                      scores_.dim, " (an end of kUnlimited: all), got begin ", begin[b], ", end ",
                      last, " for batch ", b});
      }
      if (last < scores_.dim && !is_side_) lengths_user_ = "keys_between()";
    });
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

  /// A mask of `count` batches, of which batch b of the call takes b % count.
  template <class M>
  void declare_repeated(const M& mask, Index count) {
    if (count < 1) {
      raise_option({"repeat_batch(mask, count) takes a count of 1 or more, got ", count});
    }
    const Index batch = scores_.batch;
    if (batch % count != 0) {
      raise_shape({"the count of repeat_batch(mask, count) must divide the batch, ", batch,
                   ", got ", count});
    }
    scores_.batch = count;
    ++repeated_;
    mask.declare(*this);
    --repeated_;
    scores_.batch = batch;
  }

  /// After all masks: the offset of the queries.
  PerBatch resolve_offset() const {
    const Index queries = scores_.length, keys = scores_.dim;
    if (position_user_ != nullptr && lengths_user_ != nullptr && queries != keys && !has_value_ &&
        !past_) {
      raise_shape({position_user_, " with ", lengths_user_,
                   " and a query length that is not the key length: say where the queries "
                   "stand, as causal_from(offset) or options.query_offset (length - Sq: at "
                   "the end of the valid keys)"});
    }
    if (needs_offset_ && queries != keys && !offset_ && !past_) {
      raise_shape(
          "causal() needs as many queries as keys, or a position: use causal_top_left() (offset "
          "0), "
          "causal_bottom_right() (offset Sk - Sq), causal_from(offset) or options.query_offset");
    }
    if (offset_) return *offset_;
    if (needs_offset_ && past_ && !is_sizing_ && !has_padding_ && all_negative(*past_)) {
      raise_shape(
          "causal() over a cache of which no sequence holds as many tokens as q has: append the "
          "keys and values of these tokens first, or say where the queries stand, as "
          "causal_from(offset) or options.query_offset");
    }
    if (past_) return *past_;
    return PerBatch(keys - queries);
  }

 private:
  void set_offset(const char* mask, const PerBatch& offset) {
    if (offset_ && differ(*offset_, offset)) {
      raise_option({offset_name_, " and ", mask, " give different positions to the queries"});
    }
    if (!offset_) offset_name_ = mask;
    offset_ = offset;
  }
  bool all_negative(const PerBatch& numbers) const {
    const KeyRange batches = call_.batches(call_batch_);
    for (Index batch = batches.begin; batch < batches.end; ++batch) {
      if (numbers[batch] >= 0) return false;
    }
    return batches.size() == call_batch_ && call_batch_ > 0;  // not one of a ragged batch
  }
  bool differ(const PerBatch& a, const PerBatch& b) const {
    const KeyRange batches = call_.batches(call_batch_);
    for (Index batch = batches.begin; batch < batches.end; ++batch) {
      if (a[batch] != b[batch]) return true;
    }
    return false;
  }

  std::optional<PerBatch> offset_, past_;
  const char* offset_name_ = nullptr;
  const char* position_user_ = nullptr;
  bool has_value_ = false;  // an offset was given as a number, not as Sk - Sq
  bool needs_offset_ = false;
  bool has_padding_ = false;
  const char* lengths_user_ = nullptr;  // what says that valid keys may end before Sk
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

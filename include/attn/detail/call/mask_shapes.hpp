// attn/detail/call/mask_shapes.hpp - level 5: what the tensors and numbers of masks must fit.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/base/float_bits.hpp"
#include "attn/detail/call/call_shapes.hpp"
#include "attn/detail/rows/tensor_ref.hpp"
#include "attn/detail/text/text_parts.hpp"
#include "attn/options.hpp"
#include "attn/tensor.hpp"
#include "attn/tile.hpp"

namespace attn {
namespace detail {
inline namespace ATTN_BUILD {

/// Holds what masks look at against the scores [B, Hq, Sq, Sk] of a call.
class MaskShapes {
 public:
  /// `largest`: the largest finite value of the accumulation type.
  MaskShapes(CallShapes& call, Shape4 scores, double largest)
      : call_(call), scores_(scores), call_batch_(scores.batch), largest_(largest) {}

  /// Sizes memory: the cache need not hold its keys yet.
  void set_sizing() { is_sizing_ = true; }

  /// The scores' shape (B, Hq, Sq, Sk).
  const Shape4& scores() const { return scores_; }

  [[noreturn]] void raise_option(TextParts rule) const { call_.raise_option(rule); }
  [[noreturn]] void raise_option(const TextPart& rule) const { call_.raise_option(rule); }
  [[noreturn]] void raise_shape(TextParts rule) const { call_.raise_shape(rule); }
  [[noreturn]] void raise_shape(const TextPart& rule) const { call_.raise_shape(rule); }

  /// A tensor that is read like the scores: [B|1, Hq|1, Sq|1, Sk|1].
  void check_score_view(const char* name, const TensorRef& view, Role role = Role::input) {
    const bool speaks_for_itself = !is_side_ && !is_repeated();
    call_.add_mask(name, view, speaks_for_itself ? role : Role::input);
    if (!fits_rows(view.shape) || (view.shape.dim != 1 && view.shape.dim != scores_.dim)) {
      raise_shape({"the ", name, " must have the shape of the scores, or 1, on every axis: scores ",
                   scores_});
    }
  }
  template <class T>
  void check_score_view(const char* name, const Tensor4<T>& view) {
    check_score_view(name, TensorRef(view));
  }

  /// A mask tensor of the newest keys: [B|1, Hq|1, Sq|1, Sk - the largest first_key].
  void check_new_keys(const char* name, const TensorRef& view, const PerBatch& first_key) {
    call_.add_mask(name, view, Role::input);
    check_per_batch("first_key", first_key);
    Index largest = 0;
    for_each_batch([&](Index b) {
      const Index first = first_key[b];
      if (first < 0 || (first > scores_.dim && !is_sizing_)) {
        raise_option({"the first_key of a ", name, " must lie within 0 and the number of keys ",
                      scores_.dim, ", got ", first, " for batch ", b});
      }
      largest = first > largest ? first : largest;
    });
    const Index held = scores_.dim - largest;
    if (!fits_rows(view.shape) || (view.shape.dim != held && !is_sizing_)) {
      raise_shape({"the ", name,
                   " behind first_key must have the shape of the scores, or 1, on every axis but "
                   "the last, and there hold the keys from first_key on, ",
                   scores_.dim, " - ", largest, " = ", held, ": scores ", scores_});
    }
  }

  /// One id a token: [B|1, 1, S, 1], of the queries or of the keys.
  void check_ids(const char* name, const TensorRef& view, bool are_keys) {
    add_tokens(name, view);
    const Index tokens = are_keys ? scores_.dim : scores_.length;
    if (view.shape.length == tokens || is_sizing_) return;
    raise_shape({name, " must hold one number a ", are_keys ? "key, " : "query, ", tokens, ", got ",
                 view.shape.length});
  }
  /// The same of queries that are the keys.
  void check_shared_ids(const char* name, const TensorRef& view) {
    add_tokens(name, view);
    const Index queries = scores_.length, keys = scores_.dim;
    if ((queries == keys && view.shape.length == keys) || is_sizing_) return;
    raise_shape({name, " must hold one number a token, for as many queries as keys: there are ",
                 queries, " and ", keys, ", and ", view.shape.length,
                 " ids; give those of queries and keys each, as same_segment(query_ids, key_ids)"});
  }

  /// One finite number a query head.
  void check_per_head(const char* name, Span<const double> values, bool allow_minus_infinity) {
    if (values.size() != scores_.heads) {
      raise_shape(
          {name, " must hold one number a query head, ", scores_.heads, ", got ", values.size()});
    }
    for (const double value : values) {
      if (allow_minus_infinity && is_negative_infinity(value)) continue;
      if (!is_finite(value) || value > largest_ || value < -largest_) {
        raise_option({name, " must be finite in the accumulation type, got ", value});
      }
    }
  }

  /// One number, or one each batch.
  void check_per_batch(const char* name, const PerBatch& values) {
    if (values.is_scalar() || values.size() == scores_.batch) return;
    raise_shape({name, " must hold one number, or one each batch of ",
                 is_repeated() ? "repeat_batch, " : "q, ", scores_.batch, ", got ", values.size()});
  }

 protected:
  /// Calls f(batch) for the batches that the call computes, as the mask counts them.
  template <class F>
  void for_each_batch(const F& f) const {
    KeyRange batches = call_.batches(call_batch_);
    if (is_repeated()) {
      const Index first = batches.begin % scores_.batch;
      batches = batches.size() == call_batch_ ? KeyRange{0, scores_.batch}
                                              : KeyRange{first, first + 1};  // of a ragged call
    }
    for (Index batch = batches.begin; batch < batches.end; ++batch) f(batch);
  }
  bool is_repeated() const { return repeated_ > 0; }

  CallShapes& call_;
  Shape4 scores_;     // the batch: that of repeat_batch, within one
  Index call_batch_;  // the batch of q
  double largest_;
  Index repeated_ = 0;    // how many repeat_batch are around the mask
  bool is_side_ = false;  // of a union: what it drops others may keep
  bool is_sizing_ = false;

 private:
  void add_tokens(const char* name, const TensorRef& view) {
    call_.add_mask(name, view, Role::input);
    const Shape4& s = view.shape;
    if ((s.batch != 1 && s.batch != scores_.batch) || s.heads != 1 || s.dim != 1) {
      raise_shape({name, " must be [batch of q or 1, 1, number of tokens, 1], the batch of q is ",
                   scores_.batch});
    }
  }
  /// Whether a tensor fits the scores on the axes before the keys'.
  bool fits_rows(const Shape4& s) const {
    return (s.batch == 1 || s.batch == scores_.batch) &&
           (s.heads == 1 || s.heads == scores_.heads) &&
           (s.length == 1 || s.length == scores_.length);
  }
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

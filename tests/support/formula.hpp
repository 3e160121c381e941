// tests/support/formula.hpp - masks and biases written as formulas, for the reference.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "attn/config.hpp"

namespace attn {
namespace test {

/// A callable (score, b, h, i, j) -> score that works in float, double and long double.
class ScoreChange {
 public:
  ScoreChange() = default;  // changes nothing
  template <class F>
  explicit ScoreChange(F f) : held_(std::make_shared<Holder<F>>(std::move(f))) {}

  template <class A>
  A operator()(A score, Index b, Index h, Index i, Index j) const {
    return held_ == nullptr ? score : held_->apply(score, b, h, i, j);
  }
  /// This change, then `next`.
  ScoreChange then(const ScoreChange& next) const {
    if (held_ == nullptr) return next;
    if (next.held_ == nullptr) return *this;
    return ScoreChange([first = *this, next](auto score, Index b, Index h, Index i, Index j) {
      return next(first(score, b, h, i, j), b, h, i, j);
    });
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual float apply(float, Index, Index, Index, Index) const = 0;
    virtual double apply(double, Index, Index, Index, Index) const = 0;
    virtual long double apply(long double, Index, Index, Index, Index) const = 0;
  };
  template <class F>
  struct Holder final : Interface {
    explicit Holder(F f) : function(std::move(f)) {}
    float apply(float s, Index b, Index h, Index i, Index j) const override {
      return function(s, b, h, i, j);
    }
    double apply(double s, Index b, Index h, Index i, Index j) const override {
      return function(s, b, h, i, j);
    }
    long double apply(long double s, Index b, Index h, Index i, Index j) const override {
      return function(s, b, h, i, j);
    }
    F function;
  };

  std::shared_ptr<const Interface> held_;
};

/// What a mask means: which keys a query may see, and what happens to their scores. The default
/// lets every key pass unchanged.
struct Formula {
  using Allowed = std::function<bool(Index b, Index h, Index i, Index j)>;

  Allowed allowed;  // empty: every key
  ScoreChange change;

  bool allows(Index b, Index h, Index i, Index j) const { return !allowed || allowed(b, h, i, j); }
};

inline Formula keeps(Formula::Allowed allowed) { return Formula{std::move(allowed), {}}; }
template <class F>
Formula changes(F f) {
  return Formula{{}, ScoreChange(std::move(f))};
}

/// Both formulas, the left one first.
inline Formula operator&(const Formula& left, const Formula& right) {
  Formula both;
  both.change = left.change.then(right.change);
  if (!left.allowed) {
    both.allowed = right.allowed;
  } else if (!right.allowed) {
    both.allowed = left.allowed;
  } else {
    both.allowed = [a = left.allowed, b = right.allowed](Index batch, Index h, Index i, Index j) {
      return a(batch, h, i, j) && b(batch, h, i, j);
    };
  }
  return both;
}

/// Either formula, of two that change no score.
inline Formula operator|(const Formula& left, const Formula& right) {
  return keeps([left, right](Index b, Index h, Index i, Index j) {
    return left.allows(b, h, i, j) || right.allows(b, h, i, j);
  });
}

}  // namespace test
}  // namespace attn

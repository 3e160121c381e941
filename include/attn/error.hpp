// attn/error.hpp - level 1: what happens when a call is wrong.
//
// ShapeError: shapes, head counts, strides, pointers, overlaps, ranges.
// OptionError: a value of an option is not legal. Both are std::invalid_argument, and both are
// raised before anything is written.
//
// Files compiled with -fno-exceptions call the error handler instead (default: print to stderr) and
// then abort. A program may mix both kinds of files: see ATTN_BUILD in config.hpp.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#include "attn/config.hpp"

namespace attn {

/// Tensor shapes, head counts, strides, overlaps or ranges do not fit.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The value of an option is not legal.
class OptionError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// What a -fno-exceptions build calls with the message, before it aborts.
using ErrorHandler = void (*)(const char* message);

namespace detail {

inline std::atomic<ErrorHandler> error_handler{nullptr};

}  // namespace detail

/// Sets the handler of -fno-exceptions builds for the whole process; nullptr restores the default,
/// which prints the message to stderr. If the handler returns, the program aborts.
ATTN_ALWAYS_INLINE void set_error_handler(ErrorHandler handler) {
  detail::error_handler.store(handler);
}

namespace detail {
inline namespace ATTN_BUILD {

#if ATTN_HAS_EXCEPTIONS

[[noreturn]] ATTN_COLD inline void raise_shape_error(const std::string& message) {
  throw ShapeError(message);
}
[[noreturn]] ATTN_COLD inline void raise_option_error(const std::string& message) {
  throw OptionError(message);
}

/// Keeps the first exception that a task throws, so that it can be rethrown in the caller.
class FirstException {
 public:
  /// Runs `work`; an exception is kept if it is the first.
  template <class Work>
  void guard(const Work& work) {
    try {
      work();
    } catch (...) {
      if (!raised_.exchange(true)) exception_ = std::current_exception();
    }
  }
  bool raised() const { return raised_.load(std::memory_order_relaxed); }
  /// Call it after all tasks are done.
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> raised_{false};
  std::exception_ptr exception_;
};

#else

[[noreturn]] inline void abort_with(const std::string& message) {
  if (const ErrorHandler handler = error_handler.load()) {
    handler(message.c_str());
  } else {
    std::fprintf(stderr, "attn: %s\n", message.c_str());
  }
  std::abort();
}
[[noreturn]] ATTN_COLD inline void raise_shape_error(const std::string& message) {
  abort_with(message);
}
[[noreturn]] ATTN_COLD inline void raise_option_error(const std::string& message) {
  abort_with(message);
}

class FirstException {
 public:
  template <class Work>
  void guard(const Work& work) {
    work();
  }
  bool raised() const { return false; }
  void rethrow() const {}
};

#endif

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn

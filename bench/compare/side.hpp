// bench/compare/side.hpp - what speed.cpp asks of the two libraries that side.cpp becomes.
#pragma once

#include <cstddef>

/// One version of attn, and the cases it can run.
struct Side {
  /// The name of a case, or null behind the last one.
  const char* (*name)(int number);
  /// Makes a case ready. Its tensors lie in `memory`, which both sides share: where memory lies
  /// must not make a difference. Both write the same numbers.
  void (*prepare)(int number, char* memory, std::size_t size);
  /// One call of the case that is ready.
  void (*run)();
  void (*finish)();
};

extern "C" __attribute__((visibility("default"))) const Side* attn_side();

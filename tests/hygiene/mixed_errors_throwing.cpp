// The half of attn_mixed_errors with exceptions: every error can be caught here, whatever the
// linker made of the other half, and an exception of the user's passes through a pool.
#include <cstdio>
#include <stdexcept>

#include "hygiene/errors.hpp"

int run_aborting();
/// Made in the other file.
attn::AnyMask aborting_mask(attn::Index length);

namespace {

bool catches(const Failure& failure) {
  try {
    failure.call();
  } catch (const attn::ShapeError&) {
    return true;
  } catch (const attn::OptionError&) {
    return true;
  }
  return false;
}

bool rethrows() {
  attn::ThreadPool pool(2);
  attn::AttentionOptions options;
  options.executor = &pool;
  try {
    attn::scaled_dot_product_attention(
        floats({1, 2, 3, 4}), floats({1, 2, 5, 4}), floats({1, 2, 5, 6}), floats({1, 2, 3, 6}),
        attn::keep_if([](attn::ScorePosition) -> bool { throw std::runtime_error("mine"); }),
        options);
  } catch (const std::runtime_error&) {
    return true;
  }
  return false;
}

// A mask of the other file raises as the call's file does.
bool catches_for_mask() {
  const attn::AnyMask fits = aborting_mask(5), too_long = aborting_mask(6);
  const auto attend = [](const attn::AnyMask& mask) {
    attn::scaled_dot_product_attention(floats({1, 2, 3, 4}), floats({1, 2, 5, 4}),
                                       floats({1, 2, 5, 6}), floats({1, 2, 3, 6}), mask);
  };
  attend(fits);
  try {
    attend(too_long);
  } catch (const attn::OptionError&) {
    return true;
  }
  return false;
}

}  // namespace

int main() {
  int failed = 0;
  if (!catches_for_mask()) {
    std::fprintf(stderr, "not thrown: a mask of a file without exceptions\n");
    ++failed;
  }
  for (const Failure& failure : kFailures) {
    if (!catches(failure)) {
      std::fprintf(stderr, "not thrown: %s\n", failure.name);
      ++failed;
    }
  }
  if (!rethrows()) {
    std::fprintf(stderr, "an exception of the user's did not come back\n");
    ++failed;
  }
  return failed + run_aborting();
}

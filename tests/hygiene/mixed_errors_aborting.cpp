// The half of attn_mixed_errors without exceptions (-fno-exceptions): every error calls the
// handler.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "hygiene/errors.hpp"

#if ATTN_HAS_EXCEPTIONS
#error "this file is compiled with -fno-exceptions"
#endif

attn::AnyMask aborting_mask(attn::Index length) { return attn::key_lengths(length); }

namespace {

constexpr int kHandled = 42;

// A child process a call, since none returns. 0 is what the parent sees of a call that did.
int exit_code(const Failure& failure, attn::ErrorHandler handler) {
  const pid_t child = fork();
  if (child == 0) {
    attn::set_error_handler(handler);
    std::freopen("/dev/null", "w", stderr);
    failure.call();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

int run_aborting() {
  int failed = 0;
  for (const Failure& failure : kFailures) {
    const int handled = exit_code(failure, [](const char* message) {
      if (message != nullptr && *message != '\0') std::_Exit(kHandled);
    });
    const int returned = exit_code(failure, [](const char*) {});  // then the library aborts
    const int by_default = exit_code(failure, nullptr);
    if (handled != kHandled || returned != -SIGABRT || by_default != -SIGABRT) {
      std::fprintf(stderr, "%s: ended with %d, %d, %d\n", failure.name, handled, returned,
                   by_default);
      ++failed;
    }
  }
  return failed;
}

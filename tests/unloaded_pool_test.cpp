// A shared library whose static ThreadPool ends where the library is unloaded, or with the program.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace attn {
namespace test {
namespace {

/// The module, loaded.
class Module {
 public:
  Module() : handle_(dlopen(ATTN_POOL_MODULE, RTLD_NOW)) {}
  ~Module() { unload(); }
  void unload() {
    if (handle_ != nullptr) dlclose(handle_);
    handle_ = nullptr;
  }
  /// Whether its pool works.
  bool works() const {
    if (handle_ == nullptr) return false;
    void* const symbol = dlsym(handle_, "attn_sum_below");
    return symbol != nullptr && reinterpret_cast<long (*)(long)>(symbol)(100) == 4950;
  }

 private:
  void* handle_;
};

/// Whether a child process that runs `body` ends with exit code 0. The alarm ends one that hangs.
template <class F>
bool ends_well(const F& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    _exit(1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(UnloadedPool, EndsWithItsLibrary) {
  alarm(60);
  for (int i = 0; i < 20; ++i) {
    Module module;
    ASSERT_TRUE(module.works()) << dlerror();
  }
  alarm(0);
}

TEST(UnloadedPool, EndsInAForkedChild) {
  Module module;
  ASSERT_TRUE(module.works());
  EXPECT_TRUE(ends_well([&] {
    if (!module.works()) _exit(1);
    module.unload();
    _exit(0);
  }));
  EXPECT_TRUE(ends_well([] { std::exit(0); }));
  EXPECT_TRUE(module.works());
}

}  // namespace
}  // namespace test
}  // namespace attn

// bench/compare/speed.cpp - times two versions of attn, call by call in turns, in one process.
//
//   speed OLD.so NEW.so [seed = 0] [text that names of cases hold]
//
// Prints for each case: its name, the median of a call in OLD and in NEW, and the shortest of each,
// in microseconds of this thread's CPU time.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "side.hpp"

namespace {

constexpr std::size_t kMemory = std::size_t{560}
                                << 20;  // 16384 tokens of 32 heads of 128, and more
constexpr double kSeconds = 0.3;        // a side and case
constexpr double kSample = 1e-4;        // shorter calls are timed several at a time
constexpr std::size_t kFewest = 9, kMost = 2000;

const Side& load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, "attn_side");
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return *reinterpret_cast<const Side* (*)()>(symbol)();
}

/// Of this thread: what others do on the machine counts less.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double time_calls(const Side& side, long calls) {
  const double begin = seconds();
  for (long i = 0; i < calls; ++i) side.run();
  return (seconds() - begin) / static_cast<double>(calls);
}

double median(std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void measure(const Side* const (&sides)[2], int number, char* memory, std::uint32_t& seed) {
  const auto draw = [&] {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<int>(seed >> 31);
  };
  const int first = draw();
  sides[first]->prepare(number, memory, kMemory);
  sides[1 - first]->prepare(number, memory, kMemory);

  for (const Side* const side : sides) time_calls(*side, 2);
  const double once = (std::max)(1e-9, time_calls(*sides[0], 2));
  const long calls = (std::max)(1L, static_cast<long>(kSample / once));
  const double sample = once * static_cast<double>(calls);
  const std::size_t samples =
      (std::min)(kMost, (std::max)(kFewest, static_cast<std::size_t>(kSeconds / sample)));
  std::vector<double> times[2];
  for (std::size_t i = 0; i < samples; ++i) {
    const int one = draw();
    for (const int side : {one, 1 - one}) times[side].push_back(time_calls(*sides[side], calls));
  }
  std::printf("%s", sides[0]->name(number));
  for (std::vector<double>& side : times) std::printf("\t%.4f", 1e6 * median(side));
  for (const std::vector<double>& side : times) {
    std::printf("\t%.4f", 1e6 * *std::min_element(side.begin(), side.end()));
  }
  std::printf("\n");
  std::fflush(stdout);
  for (const Side* const side : sides) side->finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "speed OLD.so NEW.so [seed] [text that names of cases hold]\n");
    return 1;
  }
  const Side* const sides[] = {&load(argv[1]), &load(argv[2])};
  std::uint32_t seed = argc > 3 ? static_cast<std::uint32_t>(std::atol(argv[3])) : 0;
  const char* const wanted = argc > 4 ? argv[4] : "";
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(std::size_t{2} << 20, kMemory)), &std::free);
  for (int number = 0; sides[0]->name(number) != nullptr; ++number) {
    if (std::strstr(sides[0]->name(number), wanted) != nullptr) {
      measure(sides, number, memory.get(), seed);
    }
  }
}

// bench/compare/bits.cpp - seeded random calls of everything in attn.hpp, one line each: its
// number, its kind, a hash of all result bytes (or the error), and what it was.
//
//   bits [count = 2000] [first = 0]
//
// Line n depends on n alone. Two versions of attn give the same bits where they print the same.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "draw.hpp"

namespace {

struct Kind {
  const char* name;
  void (*call)(compare::Draw& draw, compare::Line& line);
  int share;  ///< how often it is drawn
};

constexpr Kind kKinds[] = {
    {"tensors", compare::call_tensors, 40},
    {"returning", compare::call_returning, 6},
    {"plain_masks", compare::call_plain_masks, 10},
    {"inspect", compare::call_inspect, 6},
    {"merge", compare::call_merge, 2},
    {"text", compare::call_text, 1},
    {"cache", compare::call_cache, 14},
    {"ragged", compare::call_ragged, 8},
    {"linear", compare::call_linear, 3},
    {"norm", compare::call_norm, 3},
    {"rotary", compare::call_rotary, 3},
    {"layer", compare::call_layer, 6},
    {"layer_cache", compare::call_layer_cache, 6},
    {"block", compare::call_block, 3},
    {"error", compare::call_error, 4},
};

const Kind& draw_kind(compare::Draw& draw) {
  int all = 0;
  for (const Kind& kind : kKinds) all += kind.share;
  compare::Index at = draw.below(all);
  for (const Kind& kind : kKinds) {
    if (at < kind.share) return kind;
    at -= kind.share;
  }
  return kKinds[0];
}

void print_call(long number) {
  // The first bits of neighbouring seeds differ, so each call has a sequence of its own.
  compare::Draw draw(0x5EED0000u + static_cast<std::uint64_t>(number) * 0x10000001u);
  const Kind& kind = draw_kind(draw);
  compare::Line line;
  std::string result, message;
  const auto fail = [&](const char* type, const std::exception& error) {
    result = type;
    // The texts of errors may become better.
    if (kind.call != compare::call_error) message = std::string(": ") + error.what();
  };
  try {
    kind.call(draw, line);
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(line.hash.value()));
    result = text;
  } catch (const attn::ShapeError& error) {
    fail("ShapeError", error);
  } catch (const attn::OptionError& error) {
    fail("OptionError", error);
  }
  std::printf("%ld %s %s | %s%s\n", number, kind.name, result.c_str(), line.text.c_str(),
              message.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::atol(argv[1]) : 2000;
  const long first = argc > 2 ? std::atol(argv[2]) : 0;
  for (long number = first; number < first + count; ++number) print_call(number);
}

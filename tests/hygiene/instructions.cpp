// Reads a disassembly (objdump -d) and finds instructions that do not belong to their function:
//   instructions <namespace>=<set>... others=<set>
// A function whose mangled name contains a namespace (or another name; the first rule that matches
// counts; attn:: is all of attn, but not what std makes of its types) may use that instruction set,
// every other function that of `others`. Sets: sse2, avx2 (with FMA and F16C), avx512 (F, BW, DQ,
// VL), avx512_bf16, any.
#include <array>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Each contains the ones before it.
enum Set { sse2, avx2, avx512, avx512_bf16, any };
constexpr std::array<const char*, 5> kNames = {"sse2", "avx2", "avx512", "avx512_bf16", "any"};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
template <std::size_t N>
bool begins_with_any(const std::string& text, const char* const (&beginnings)[N]) {
  for (const char* const beginning : beginnings) {
    if (text.rfind(beginning, 0) == 0) return true;
  }
  return false;
}

/// The lowest set that has the instruction (any: none of the tables' has), told from its encoding:
/// after the prefixes, C4 and C5 begin VEX and 62 EVEX in 64-bit code.
Set set_of(const std::string& bytes, const std::string& mnemonic, const std::string& operands) {
  std::istringstream stream(bytes);
  std::string byte;
  const auto is_prefix = [&] {
    return byte == "26" || byte == "2e" || byte == "36" || byte == "3e" || byte == "64" ||
           byte == "65" || byte == "66" || byte == "67" || byte == "f0" || byte == "f2" ||
           byte == "f3" || byte[0] == '4';
  };
  while (stream >> byte && is_prefix()) {
  }
  if (byte == "62") {
    static const char* const kNewer[] = {"vpdp",        "vcvtne",    "vpermb",      "vpermi2b",
                                         "vpermt2b",    "vpmadd5",   "vpopcnt",     "vpcompressb",
                                         "vpcompressw", "vpexpandb", "vpexpandw",   "vpshld",
                                         "vpshrd",      "vgf2p8",    "vpmultishift"};
    if (mnemonic == "vdpbf16ps") return avx512_bf16;
    return begins_with_any(mnemonic, kNewer) ? any : avx512;
  }
  if (byte == "c4" || byte == "c5") {
    if (contains(operands, "%k")) return avx512;
    if (mnemonic == "vpdpbusd" || mnemonic == "vpdpwssd") return any;
    const bool has_vector = contains(operands, "%xmm") || contains(operands, "%ymm");
    return has_vector || mnemonic == "vzeroupper" ? avx2 : any;  // without a vector: BMI
  }
  // SSSE3 and SSE4 have opcode maps of their own. Code for newer CPUs has these in VEX.
  std::string second;
  if (byte == "0f" && stream >> second && (second == "38" || second == "3a")) return any;
  static const char* const kSse3[] = {"hadd",     "hsub",     "addsub", "movddup",
                                      "movshdup", "movsldup", "lddqu",  "popcnt",
                                      "lzcnt",    "extrq",    "insertq"};
  return begins_with_any(mnemonic, kSse3) ? any : sse2;
}

struct Rule {
  std::string name;
  Set allowed;
  long seen = 0;
};

bool matches(const Rule& rule, const std::string& function) {
  static const char* const kOfAttn[] = {"_ZN4attn", "_ZNK4attn", "_ZZN4attn", "_ZZNK4attn"};
  if (rule.name == "attn::") return begins_with_any(function, kOfAttn);
  return contains(function, rule.name.c_str());
}

/// "kernels_avx2=avx2"; false if it says something else.
bool parse(const std::string& text, std::vector<Rule>& rules) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) return false;
  for (std::size_t set = 0; set < kNames.size(); ++set) {
    if (text.substr(equals + 1) == kNames[set]) {
      rules.push_back({text.substr(0, equals), static_cast<Set>(set)});
      return true;
    }
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<Rule> rules;
  for (int i = 1; i < count; ++i) {
    if (!parse(arguments[i], rules)) {
      std::fprintf(stderr, "not understood: %s\n", arguments[i]);
      return 1;
    }
  }
  if (rules.empty() || rules.back().name != "others") {
    std::fprintf(stderr, "the last rule must be for others\n");
    return 1;
  }

  int problems = 0;
  std::string function, line;
  Rule* rule = &rules.back();
  while (std::getline(std::cin, line)) {
    // "0000000000000000 <name>:" begins a function; "   4: bytes<tab>mnemonic operands" follow.
    if (!line.empty() && line.back() == ':' && contains(line, " <")) {
      function = line.substr(line.find('<') + 1);
      rule = &rules.back();
      for (Rule& candidate : rules) {
        if (matches(candidate, function)) {
          rule = &candidate;
          break;
        }
      }
      continue;
    }
    // GNU's objdump writes a tab behind the address, LLVM's behind the mnemonic.
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    std::string bytes, mnemonic, operands;
    if (!std::getline(fields >> std::ws, bytes, '\t') || !(fields >> mnemonic)) continue;
    std::getline(fields, operands);
    ++rule->seen;
    const Set needed = set_of(bytes, mnemonic, operands);
    if (needed <= rule->allowed) continue;
    if (++problems <= 20) {
      std::fprintf(stderr, "%s may use %s, but has %s%s in %s\n", rule->name.c_str(),
                   kNames[rule->allowed], mnemonic.c_str(), operands.c_str(), function.c_str());
    }
  }
  for (const Rule& checked : rules) {
    std::printf("%s: %ld instructions\n", checked.name.c_str(), checked.seen);
    if (checked.seen < 50) {
      std::fprintf(stderr, "too few instructions of %s to say anything\n", checked.name.c_str());
      ++problems;
    }
  }
  return problems == 0 ? 0 : 1;
}

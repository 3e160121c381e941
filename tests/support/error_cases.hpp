// tests/support/error_cases.hpp - tables of what is spoilt in a right call, and of the rule that
// its error states.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "attn/tensor.hpp"
#include "support/throws.hpp"

namespace attn {
namespace test {

struct NamedShape {
  const char* name;
  Shape4 shape;
};

/// The first `count` shapes as errors list them: "q [1, 2, 3, 4], k [1, 2, 5, 4]".
inline std::string list_of(std::initializer_list<NamedShape> shapes, int count) {
  std::ostringstream text;
  for (const NamedShape& each : shapes) {
    if (count-- == 0) break;
    const Shape4& s = each.shape;
    text << (text.tellp() > 0 ? ", " : "") << each.name << " [" << s.batch << ", " << s.heads
         << ", " << s.length << ", " << s.dim << "]";
  }
  return text.str();
}

/// A `Call` is right as it is made, and has
///
///   kFunction        how its errors begin: "linear: "
///   kShapes          how many shapes they list at most
///   shapes(count)    the first `count` of them, as they are now
///   error<Error>()   runs, and gives the text of the Error
template <class Call>
struct ErrorCase {
  void (*spoil)(Call& call);
  std::string rule;
  int named = Call::kShapes;  // how many shapes the text lists: those that were looked at
};

/// Each case throws an Error whose text is the function, the rule and the shapes, spoilt as they
/// are.
template <class Error, class Call>
void expect_errors(const std::vector<ErrorCase<Call>>& cases) {
  for (const ErrorCase<Call>& each : cases) {
    Call call;
    each.spoil(call);
    EXPECT_EQ(call.template error<Error>(),
              Call::kFunction + each.rule + "; got " + call.shapes(each.named));
  }
}

}  // namespace test
}  // namespace attn

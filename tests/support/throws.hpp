// tests/support/throws.hpp - the text of an error.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace attn {
namespace test {

/// The text of the Error that `call` throws; a note that no test expects if it throws none.
template <class Error, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& other) {
    return std::string("(an exception of another type: ") + other.what() + ")";
  }
  return "(nothing was thrown)";
}

}  // namespace test
}  // namespace attn

// tests/support/values.hpp - seeded numbers, and numbers compared bit by bit.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>

namespace attn {
namespace test {

/// A number in [-1, 1) that is a pure function of (seed, index). The mixing function is SplitMix64.
/// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators" (2014).
inline double uniform(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = (seed * 0xD1342543DE82EF95u) ^ (index * 0x9E3779B97F4A7C15u);
  for (int i = 0; i < 2; ++i) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
}

/// An unsigned number below `bound`, from the same source.
inline std::uint64_t uniform_below(std::uint64_t seed, std::uint64_t index, std::uint64_t bound) {
  const double unit = uniform(seed, index) * 0.5 + 0.5;
  return static_cast<std::uint64_t>(unit * static_cast<double>(bound));
}

template <class T>
inline constexpr bool is_16_bit_v = sizeof(T) == 2;

template <class T>
T quiet_nan() {
  return std::numeric_limits<T>::quiet_NaN();
}
template <class T>
T infinity() {
  return std::numeric_limits<T>::infinity();
}

/// `value` as a T; to the 16-bit types by way of float.
template <class T>
T to(double value) {
  if constexpr (is_16_bit_v<T>) {
    return static_cast<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// Any element as a long double, exactly.
template <class T>
long double widen(T value) {
  if constexpr (is_16_bit_v<T>) {
    return static_cast<long double>(static_cast<float>(value));
  } else {
    return static_cast<long double>(value);
  }
}

template <class T, class = std::enable_if_t<sizeof(T) <= sizeof(double)>>  // not a view
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// The distance between 1 and the next T: twice the relative error of one rounding.
template <class T>
long double epsilon() {
  if constexpr (std::is_same_v<T, Eigen::half>) return 0x1p-10L;  // Eigen 3.4 says 2^-13
  return widen(std::numeric_limits<T>::epsilon());
}

template <class T>
const char* name_of_type() {
  if constexpr (std::is_same_v<T, double>) return "double";
  if constexpr (std::is_same_v<T, float>) return "float";
  if constexpr (std::is_same_v<T, Eigen::half>) return "half";
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) return "bfloat16";
  return "?";
}

/// Names the cases of a typed test by their element type.
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return name_of_type<T>();
  }
};

}  // namespace test
}  // namespace attn

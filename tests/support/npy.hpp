// tests/support/npy.hpp - reads NumPy's .npy files.
#pragma once

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/config.hpp"

namespace attn {
namespace test {

/// One array: its element type as NumPy spells it ("<f4"), its extents, its elements row by row.
struct NpyArray {
  std::string type;
  std::vector<Index> shape;
  std::vector<char> bytes;

  Index size() const {
    Index product = 1;
    for (const Index extent : shape) product *= extent;
    return product;
  }
  /// The elements, which must be as wide as a T.
  template <class T>
  std::vector<T> values() const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> result(static_cast<std::size_t>(size()));
    if (result.size() * sizeof(T) != bytes.size()) {
      throw std::runtime_error("npy: the elements of type " + type + " do not have " +
                               std::to_string(sizeof(T)) + " bytes");
    }
    if (!bytes.empty()) std::memcpy(static_cast<void*>(result.data()), bytes.data(), bytes.size());
    return result;
  }
};

/// Reads a file of format 1 to 3, little-endian, in C order. Throws std::runtime_error.
inline NpyArray read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const auto require = [&](bool holds, const char* what) {
    if (!holds) throw std::runtime_error("npy: " + path + ": " + what);
  };
  require(!file.fail() && content.size() >= 12, "cannot be read");
  require(content.compare(0, 6, "\x93NUMPY") == 0, "is not an .npy file");

  const auto byte = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(content[at]));
  };
  const bool is_format_1 = content[6] == 1;
  std::size_t header_size = byte(8) | byte(9) << 8;
  if (!is_format_1) header_size |= byte(10) << 16 | byte(11) << 24;
  const std::size_t header_begin = is_format_1 ? 10 : 12;
  require(content.size() >= header_begin + header_size, "ends within its header");
  const std::string header = content.substr(header_begin, header_size);

  // The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
  const auto after = [&](const char* key) {
    const std::size_t at = header.find(key);
    require(at != std::string::npos, "lacks a field of its header");
    return at + std::strlen(key);
  };
  NpyArray array;
  const std::size_t type_begin = header.find('\'', after("'descr':")) + 1;
  array.type = header.substr(type_begin, header.find('\'', type_begin) - type_begin);
  require(array.type.size() > 2 && array.type[0] != '>', "is not a little-endian array of numbers");
  require(header.find("False", after("'fortran_order':")) != std::string::npos,
          "is not in C order");
  std::size_t at = header.find('(', after("'shape':")) + 1;
  while (header[at] != ')') {
    std::size_t used = 0;
    array.shape.push_back(static_cast<Index>(std::stoll(header.substr(at), &used)));
    at = header.find_first_not_of(", ", at + used);
  }

  array.bytes.assign(content.begin() + static_cast<std::ptrdiff_t>(header_begin + header_size),
                     content.end());
  const std::size_t element_size = static_cast<std::size_t>(std::stoul(array.type.substr(2)));
  require(array.bytes.size() == static_cast<std::size_t>(array.size()) * element_size,
          "does not have the size that its shape says");
  return array;
}

}  // namespace test
}  // namespace attn

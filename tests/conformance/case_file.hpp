// tests/conformance/case_file.hpp - reads what case_writer.py has written.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <fstream>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/config.hpp"
#include "attn/tensor.hpp"
#include "support/npy.hpp"
#include "support/values.hpp"

namespace attn {
namespace test {

/// A tensor of a case. Doubles hold the elements of every type exactly.
struct CaseTensor {
  std::string type;  // as NumPy names it: float32, bool, ...
  std::vector<Index> shape;
  std::vector<double> values;

  template <class T>
  std::vector<T> as() const {
    std::vector<T> result;
    for (const double value : values) result.push_back(to<T>(value));
    return result;
  }
};

struct Case {
  std::string name, operator_name;
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> words;
  std::map<std::string, CaseTensor> tensors;

  bool has(const std::string& tensor) const { return tensors.count(tensor) != 0; }
  double number(const std::string& key, double otherwise) const {
    const auto found = numbers.find(key);
    return found == numbers.end() ? otherwise : found->second;
  }
  std::string word(const std::string& key) const {
    const auto found = words.find(key);
    return found == words.end() ? std::string() : found->second;
  }
};

/// How GoogleTest prints a case.
inline std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << c.name; }

/// A case's name as GoogleTest wants it.
struct CaseTestName {
  template <class Info>
  std::string operator()(const Info& test) const {
    std::string name = test.param.name;
    for (char& letter : name) {
      if (letter == '.') letter = '_';
    }
    return name;
  }
};

namespace case_file {

template <class T>
std::vector<double> widen_all(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T value : values) result.push_back(static_cast<double>(widen(value)));
  return result;
}

inline std::vector<double> read_elements(const std::string& folder, const std::string& type) {
  const NpyArray array = read_npy(folder + "/" + type + ".npy");
  if (type == "float64") return array.values<double>();
  if (type == "float32") return widen_all(array.values<float>());
  if (type == "float16") return widen_all(array.values<Eigen::half>());
  if (type == "bfloat16") return widen_all(array.values<Eigen::bfloat16>());
  if (type == "int64") return widen_all(array.values<std::int64_t>());
  if (type == "bool") return widen_all(array.values<std::uint8_t>());
  throw std::runtime_error("case file: unknown element type " + type);
}

}  // namespace case_file

/// All cases of a folder; none if it has no manifest. Throws std::runtime_error if it is damaged.
inline std::vector<Case> read_cases(const std::string& folder) {
  std::vector<Case> cases;
  std::ifstream manifest(folder + "/manifest.txt");
  std::map<std::string, std::vector<double>> elements;  // by type
  std::string word, version, source;
  if (!(manifest >> word >> version >> source)) return cases;
  if (word != "attn-cases" || version != "1") {
    throw std::runtime_error("case file: " + folder + " was written by another case_writer.py");
  }
  while (manifest >> word) {
    std::string key;
    if (word == "case") {
      cases.emplace_back();
      manifest >> cases.back().name;
    } else if (word == "operator") {
      manifest >> cases.back().operator_name;
    } else if (word == "number") {
      manifest >> key;
      manifest >> cases.back().numbers[key];
    } else if (word == "word") {
      manifest >> key;
      manifest >> cases.back().words[key];
    } else if (word == "tensor") {
      CaseTensor tensor;
      std::size_t offset = 0, rank = 0, size = 1;
      manifest >> key >> tensor.type >> offset >> rank;
      for (std::size_t axis = 0; axis < rank && manifest; ++axis) {
        Index extent = 0;
        manifest >> extent;
        tensor.shape.push_back(extent);
        size *= static_cast<std::size_t>(extent);
      }
      if (elements.count(tensor.type) == 0) {
        elements[tensor.type] = case_file::read_elements(folder, tensor.type);
      }
      const std::vector<double>& all = elements[tensor.type];
      if (!manifest || offset + size > all.size()) {
        throw std::runtime_error("case file: " + folder + " is damaged at tensor " + key);
      }
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(offset);
      tensor.values.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
      cases.back().tensors[key] = tensor;
    } else if (word != "end") {
      throw std::runtime_error("case file: " + folder + " has an unknown line " + word);
    }
  }
  return cases;
}

/// A view [batch, heads, length, dim] of a tensor's elements: of rank 4 as they lie, of rank 3 as
/// (batch, length, heads * dim).
template <class T>
Tensor4<T> view_of(T* elements, const std::vector<Index>& shape, Index num_heads) {
  if (shape.size() == 4) return bhsd(elements, {shape[0], shape[1], shape[2], shape[3]});
  if (shape.size() == 3 && num_heads > 0) {
    return bshd(elements, {shape[0], num_heads, shape[1], shape[2] / num_heads});
  }
  throw std::runtime_error("case file: a tensor of rank 3 with heads or of rank 4 was expected");
}

/// The shape of a tensor of up to four axes, aligned at the last one.
inline Shape4 right_aligned(const std::vector<Index>& shape) {
  Index extents[4] = {1, 1, 1, 1};
  if (shape.size() > 4) throw std::runtime_error("case file: a tensor of rank above 4");
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    extents[4 - shape.size() + axis] = shape[axis];
  }
  return {extents[0], extents[1], extents[2], extents[3]};
}

}  // namespace test
}  // namespace attn

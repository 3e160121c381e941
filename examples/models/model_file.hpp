// The tensors of a model as dump.py writes them, and the lines of its text files.
#pragma once

#include <cstddef>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace models {

using attn::Index;

/// weights.bin of a folder: float tensors by name.
class ModelFile {
 public:
  explicit ModelFile(const std::string& folder) {
    std::ifstream index(folder + "/weights.txt");
    std::size_t size = 0;
    for (Entry entry; index >> entry.name >> entry.rows >> entry.columns >> entry.place;) {
      size = entry.place + static_cast<std::size_t>(entry.rows * entry.columns);
      entries_[entry.name] = entry;
    }
    data_.resize(size);
    std::ifstream file(folder + "/weights.bin", std::ios::binary);
    file.read(reinterpret_cast<char*>(data_.data()),
              static_cast<std::streamsize>(size * sizeof(float)));
    if (!file || size == 0) throw std::runtime_error(folder + " cannot be read");
  }

  /// [1, 1, rows, columns]
  attn::Tensor4<const float> matrix(const std::string& name) const {
    const Entry& entry = entries_.at(name);
    return {data_.data() + entry.place, {1, 1, entry.rows, entry.columns}};
  }
  const float* vector(const std::string& name) const { return matrix(name).data(); }
  /// A weight and, if the model has one, its bias.
  attn::LinearWeights<float> linear(const std::string& name) const {
    const bool has_bias = entries_.count(name + ".bias") > 0;
    return {matrix(name + ".weight"), has_bias ? vector(name + ".bias") : nullptr};
  }

 private:
  struct Entry {
    std::string name;
    Index rows = 0, columns = 0;
    std::size_t place = 0;
  };
  std::map<std::string, Entry> entries_;
  std::vector<float> data_;
};

/// The lines of a text file; none if there is no such file.
inline std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// One list of token ids a line.
inline std::vector<std::vector<Index>> read_ids(const std::string& path) {
  std::vector<std::vector<Index>> lists;
  for (const std::string& line : read_lines(path)) {
    std::istringstream stream(line);
    lists.emplace_back();
    for (Index id; stream >> id;) lists.back().push_back(id);
  }
  return lists;
}

}  // namespace models

// A program of files that are compiled with different flags (flags_file.cpp): prints what each of
// them computes, in an order that does not depend on that of linking.
#include "hygiene/flags.hpp"

#include <cstdio>
#include <cstring>

namespace {
FlagsFile* first_file = nullptr;
}

void add_flags_file(FlagsFile& file) {
  FlagsFile** place = &first_file;
  while (*place != nullptr && std::strcmp((*place)->name, file.name) < 0) place = &(*place)->next;
  file.next = *place;
  *place = &file;
}

int main() {
  for (const FlagsFile* file = first_file; file != nullptr; file = file->next) file->print_all();
  std::fflush(stdout);
  return first_file == nullptr;
}

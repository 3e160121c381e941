// tests/hygiene/flags.hpp - what the files of the programs of mixed flags tell their program: no
// type of attn's or std's, which the linker could confuse.
#pragma once

struct FlagsFile {
  const char* name;
  /// Prints one line a function, its name and a checksum of its results.
  void (*print_all)();
  FlagsFile* next;
};

/// Of the program, in flags_program.cpp.
void add_flags_file(FlagsFile& file);

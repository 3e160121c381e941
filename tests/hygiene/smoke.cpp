// Built once per row of the table of variants in CMakeLists.txt.
#include "hygiene/smoke.hpp"

int main() { smoke(); }

include_guard(GLOBAL)
# The warnings of attn's own tests, examples and benchmarks. Whether they are errors is
# CMAKE_COMPILE_WARNING_AS_ERROR's to say: new compilers have new warnings, and a user's first build
# must not fail for one.
add_library(attn_warnings INTERFACE)
target_compile_options(attn_warnings INTERFACE
  $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion>)

# Finds attn's symbols that two translation units could not both define:
#   cmake -D NM=<nm> -D OBJECT=<object file> -P symbols.cmake
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${NM} --demangle --defined-only ${OBJECT}
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [A-Za-z] attn::[^\n]*" all "${symbols}")
list(LENGTH all count)
if(count LESS 100)
  message(FATAL_ERROR "only ${count} symbols of attn were seen, so nothing was tested")
endif()
string(REGEX MATCHALL " [ABCDGRST] attn::[^\n]*" strong "${symbols}")
if(strong)
  list(JOIN strong "\n" strong)
  message(FATAL_ERROR "not inline or a template, so no two files may define them:\n${strong}")
endif()

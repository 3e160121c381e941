# Compiles SOURCE as it is, which must work, and with -D ATTN_EXPECT_ERROR, which must not:
#   cmake -D SOURCE=<file> -P expect_error.cmake -- <compiler and flags>...
# The file's first line is "// error: " and a part of the compiler's message, word for word.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../arguments.cmake)

file(READ ${SOURCE} text)
if(NOT text MATCHES "^// error: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE} does not begin with '// error: '")
endif()
set(expected "${CMAKE_MATCH_1}")

execute_process(COMMAND ${arguments} ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the right form does not compile:\n${output}")
endif()

execute_process(COMMAND ${arguments} -DATTN_EXPECT_ERROR ${SOURCE}
  RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "the wrong form compiles")
endif()
string(FIND "${output}" "${expected}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "the compiler does not say '${expected}':\n${output}")
endif()

# Compares the EIGEN_ macros after Eigen's header alone with those after attn's:
#   cmake -P eigen_macros.cmake -- <compiler and flags>...
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../arguments.cmake)

# The macros that begin with EIGEN_ after `header`. <new> comes first: one of Eigen 5's follows a macro
# of the standard library, which any standard header may bring.
function(eigen_macros header out)
  execute_process(COMMAND ${arguments} -include new -include ${header} -x c++ -dM -E /dev/null
    OUTPUT_VARIABLE macros COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "#define EIGEN_[^\n]*" macros "${macros}")
  list(SORT macros)
  set(${out} "${macros}" PARENT_SCOPE)
endfunction()

eigen_macros(Eigen/Core before)
eigen_macros(attn/attn.hpp after)
list(LENGTH before count)
if(count LESS 100)
  message(FATAL_ERROR "only ${count} EIGEN_ macros were seen, so nothing was compared")
endif()
if(NOT before STREQUAL after)
  list(REMOVE_ITEM after ${before})
  message(FATAL_ERROR "attn changes macros of Eigen: ${after}")
endif()

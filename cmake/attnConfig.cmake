# find_package(attn): defines the target attn::attn, and attn::compiled if that was installed.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(Eigen3 CONFIG)

include("${CMAKE_CURRENT_LIST_DIR}/attnCheckEigen.cmake")
if(attn_eigen_problem)
  set(attn_FOUND FALSE)
  set(attn_NOT_FOUND_MESSAGE "${attn_eigen_problem}")
  return()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/attnTargets.cmake")

# A parent's view of attn as a part of it: before_attn() ... after_attn().

# A project of any age has such targets; attn must not want one of these names.
macro(before_attn)
  foreach(name tests test_support examples bench benchmark docs check format install_attn uninstall)
    add_custom_target(${name})
  endforeach()
  set(flags_before "${CMAKE_CXX_FLAGS}|${CMAKE_BUILD_TYPE}|${CMAKE_CXX_STANDARD}|${BUILD_TESTING}")
  get_directory_property(options_before COMPILE_OPTIONS)
  get_property(cache_before DIRECTORY PROPERTY CACHE_VARIABLES)
endmacro()

# after_attn(<source folder of attn>)
macro(after_attn source_dir)
  get_property(targets DIRECTORY ${source_dir} PROPERTY BUILDSYSTEM_TARGETS)
  if(NOT targets STREQUAL "attn;attn_compiled")
    message(FATAL_ERROR "attn makes the targets ${targets} in a parent project")
  endif()
  get_property(subdirectories DIRECTORY ${source_dir} PROPERTY SUBDIRECTORIES)
  get_property(tests DIRECTORY ${source_dir} PROPERTY TESTS)
  if(subdirectories OR tests)
    message(FATAL_ERROR "attn brings ${subdirectories} ${tests} into a parent project")
  endif()

  get_directory_property(options_after COMPILE_OPTIONS)
  if(NOT flags_before STREQUAL
      "${CMAKE_CXX_FLAGS}|${CMAKE_BUILD_TYPE}|${CMAKE_CXX_STANDARD}|${BUILD_TESTING}"
      OR NOT options_before STREQUAL options_after)
    message(FATAL_ERROR "attn changes the parent's flags")
  endif()

  get_property(added DIRECTORY PROPERTY CACHE_VARIABLES)
  list(REMOVE_ITEM added ${cache_before})
  list(FILTER added EXCLUDE REGEX "^(ATTN_|attn_|Eigen3_DIR$|FETCHCONTENT_|CMAKE_HAVE_(LIBC_)?PTHREAD|FIND_PACKAGE_MESSAGE_DETAILS_)")
  if(added)
    message(FATAL_ERROR "attn adds ${added} to the parent's cache")
  endif()
endmacro()

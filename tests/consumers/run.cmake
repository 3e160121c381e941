# Configures, builds and runs one consumer project:
#   cmake -D CASE=<find_package[_compiled]|add_subdirectory[_compiled]|fetch_content|old_eigen|
#     readme_install>
#     -D ATTN_SOURCE=<checkout> -D VERSION=<of attn> -D EIGEN_INCLUDE=<folder>
#     -D WORK=<scratch folder> [-D CONSUMER_CMAKE=<another cmake, for what the consumer runs>]
#     -P run.cmake -- <options of every configure>...
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../arguments.cmake)

if(NOT CONSUMER_CMAKE)
  set(CONSUMER_CMAKE ${CMAKE_COMMAND})
endif()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(configure source build)
  run(${CONSUMER_CMAKE} -S ${source} -B ${build} ${arguments} ${ARGN})
endfunction()
# configure_fails(<message> <source> <build> <options>...)
function(configure_fails message source build)
  execute_process(COMMAND ${CONSUMER_CMAKE} -S ${source} -B ${build} ${arguments} ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(result EQUAL 0 OR NOT output MATCHES "${message}")
    message(FATAL_ERROR "configuring ${source} with ${ARGN} should fail with '${message}':\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
# The consumer may link the compiled library.
set(compiled OFF)
if(CASE MATCHES "(.+)_compiled$")
  set(CASE ${CMAKE_MATCH_1})
  set(compiled ON)
  list(APPEND arguments -D ATTN_TARGET=attn::compiled)
endif()
set(project ${CMAKE_CURRENT_LIST_DIR}/${CASE})
set(build "${WORK}/build")

# README's command that installs attn, run in a copy of the sources: with what a fresh clone has, and
# without what a build has left in this one.
function(install_as_readme_says)
  file(READ ${ATTN_SOURCE}/README.md text)
  if(NOT text MATCHES "# installed by: ([^\n]*)\n")
    message(FATAL_ERROR "README.md does not say how attn is installed")
  endif()
  file(COPY ${ATTN_SOURCE}/CMakeLists.txt ${ATTN_SOURCE}/CMakePresets.json ${ATTN_SOURCE}/LICENSE
    ${ATTN_SOURCE}/cmake ${ATTN_SOURCE}/include DESTINATION "${WORK}/clone")
  execute_process(COMMAND sh -c "${CMAKE_MATCH_1} --prefix '${WORK}/moved prefix'"
    WORKING_DIRECTORY "${WORK}/clone" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Installs attn, then moves the prefix (to a folder with a space in its name) and removes what it
# was made from, so that a path kept by mistake leads nowhere.
function(install_and_move)
  configure(${ATTN_SOURCE} "${WORK}/attn" -D ATTN_BUILD_TESTS=OFF -D ATTN_BUILD_EXAMPLES=OFF
    -D ATTN_INSTALL_COMPILED=${compiled})
  if(compiled)
    run(${CONSUMER_CMAKE} --build "${WORK}/attn")
  endif()
  run(${CONSUMER_CMAKE} --install "${WORK}/attn" --prefix "${WORK}/prefix")
  file(RENAME "${WORK}/prefix" "${WORK}/moved prefix")
  file(REMOVE_RECURSE "${WORK}/attn")
  file(GLOB_RECURSE package_files "${WORK}/moved prefix/*.cmake")
  if(NOT package_files)
    message(FATAL_ERROR "no package is installed")
  endif()
  foreach(file IN LISTS package_files)
    file(READ "${file}" text)
    foreach(path IN ITEMS "${WORK}" "${ATTN_SOURCE}")
      string(FIND "${text}" "${path}" position)
      if(NOT position EQUAL -1)
        message(FATAL_ERROR "${file} holds the absolute path ${path}")
      endif()
    endforeach()
  endforeach()
endfunction()

if(CASE STREQUAL "old_eigen")
  # An Eigen of another version is refused by attn's build and by its installed package, in words.
  install_and_move()
  foreach(version 3.3.9 6.0.0)
    file(WRITE "${WORK}/eigen-${version}/Eigen3Config.cmake"
      "add_library(Eigen3::Eigen INTERFACE IMPORTED)\n")
    file(WRITE "${WORK}/eigen-${version}/Eigen3ConfigVersion.cmake"
      "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    set(message "Eigen 3.4 or 5 is needed, but ${version} was found")
    configure_fails("${message}" ${ATTN_SOURCE} "${WORK}/attn-${version}"
      "-DEigen3_DIR=${WORK}/eigen-${version}")
    configure_fails("${message}" ${CMAKE_CURRENT_LIST_DIR}/find_package "${WORK}/build-${version}"
      "-DEigen3_DIR=${WORK}/eigen-${version}" "-DCMAKE_PREFIX_PATH=${WORK}/moved prefix"
      -D ATTN_EXPECTED_VERSION=${VERSION})
  endforeach()
  return()
endif()

if(CASE STREQUAL "find_package" OR CASE STREQUAL "readme_install")
  if(CASE STREQUAL "readme_install")
    set(project ${CMAKE_CURRENT_LIST_DIR}/find_package)
    install_as_readme_says()
  else()
    install_and_move()
  endif()
  set(prefix "-DCMAKE_PREFIX_PATH=${WORK}/moved prefix")
  configure_fails("compatible with requested version" ${project} "${WORK}/too_new" ${prefix}
    -D ATTN_EXPECTED_VERSION=99.0.0)
  configure(${project} "${build}" ${prefix} -D ATTN_EXPECTED_VERSION=${VERSION})
else()
  configure(${project} "${build}" -D ATTN_SOURCE=${ATTN_SOURCE} -D EIGEN_INCLUDE=${EIGEN_INCLUDE})
endif()
run(${CONSUMER_CMAKE} --build "${build}")
file(GLOB_RECURSE program "${build}/consumer")
run("${program}")

if(CASE STREQUAL "add_subdirectory" OR CASE STREQUAL "fetch_content")
  # What the parent installs is its own.
  run(${CONSUMER_CMAKE} --install "${build}" --prefix "${WORK}/installed")
  file(GLOB_RECURSE installed RELATIVE "${WORK}/installed" "${WORK}/installed/*")
  if(NOT installed STREQUAL "bin/consumer")
    message(FATAL_ERROR "the parent project installs ${installed}")
  endif()
endif()

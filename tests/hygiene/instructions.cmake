# Looks for instructions in functions that may not have them (see instructions.cpp):
#   cmake -D OBJDUMP=<objdump> -D CHECK=<instructions> -D FILE=<object or program> -P instructions.cmake
#     -- <rules>...
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../arguments.cmake)

execute_process(COMMAND ${OBJDUMP} -d ${FILE} COMMAND ${CHECK} ${arguments}
  COMMAND_ERROR_IS_FATAL ANY)

# Breaks a copy of the headers in every way that layers.cmake must find:
#   cmake -D ROOT=<checkout> -D WORK=<scratch folder> -P layers_selftest.cmake
cmake_minimum_required(VERSION 3.25)

# expect(<message as a regular expression> <file in the copy> <line to append>)
function(expect message file line)
  file(REMOVE_RECURSE ${WORK})
  file(COPY ${ROOT}/include ${ROOT}/examples DESTINATION ${WORK})
  file(APPEND ${WORK}/${file} "${line}\n")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK} -P ${CMAKE_CURRENT_LIST_DIR}/layers.cmake
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0 OR NOT output MATCHES "${message}")
    message(SEND_ERROR "'${line}' in ${file} should be found with '${message}', but:\n${output}")
  endif()
endfunction()

expect("error.hpp \\(level 1\\) includes tensor.hpp \\(level 2\\)"
  include/attn/error.hpp "#include \"attn/tensor.hpp\"")
expect("in a cycle: .*tensor.hpp" include/attn/tensor.hpp "#include <attn/options.hpp>")
expect("detail/text/text.hpp includes detail/kernels/kernel_table.hpp, which is of the same level"
  include/attn/detail/text/text.hpp "#include \"attn/detail/kernels/kernel_table.hpp\"")
expect("executor.hpp includes random.hpp, which is of the same level"
  include/attn/executor.hpp "#include \"attn/random.hpp\"")
expect("new.hpp does not refuse to be included by users"
  include/attn/detail/text/new.hpp "// attn/detail/text/new.hpp - level 3: new.")
expect("includes lost.hpp, which does not exist" include/attn/tile.hpp "#include \"attn/lost.hpp\"")
expect("new.hpp is missing from the table" include/attn/new.hpp "// attn/new.hpp - level 2: new.")
expect("begin with '// attn/new.hpp" include/attn/new.hpp "// attn/new.hpp - level two: new.")
expect("belongs in config.hpp alone" include/attn/tile.hpp "#ifdef __cpp_exceptions")
expect("belongs in openmp.hpp alone" include/attn/tile.hpp "#ifdef _OPENMP")
expect("belongs in thread_pool.hpp alone" include/attn/tile.hpp "inline std::thread t;")
expect("no header of a library may" include/attn/tile.hpp "inline auto e = std::getenv(\"A\");")
expect("reference.hpp includes detail/text/text.hpp"
  include/attn/reference.hpp "#include \"attn/detail/text/text.hpp\"")
expect("attn.hpp reaches openmp.hpp" include/attn/attn.hpp "#include \"attn/openmp.hpp\"")
expect("examples use public names alone" examples/new.cpp "#include \"attn/detail/text/text.hpp\"")
expect("examples use public names alone" examples/new.cpp "attn::detail::f();")

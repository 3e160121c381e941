# Checks that arrows point downward: cmake -D ROOT=<checkout> -P layers.cmake
#
# A header includes only headers of lower levels or of its own, without cycles. A new header is
# entered here, at its level; each states the same level in its first line.
cmake_minimum_required(VERSION 3.25)

set(level_0 config.hpp)
set(level_1
  detail/float_bits.hpp detail/simd.hpp detail/text.hpp error.hpp executor.hpp random.hpp tile.hpp)
set(level_2
  attention_config.hpp detail/call_shapes.hpp detail/kernel_table.hpp
  detail/matrix_unit.hpp detail/overlap.hpp
  detail/parallel.hpp detail/rows.hpp detail/tensor_ref.hpp layer_norm.hpp openmp.hpp options.hpp
  rms_norm.hpp rotary_scaling.hpp tensor.hpp)
set(level_3
  caches/contiguous.hpp caches/paged.hpp caches/rolling.hpp
  detail/check.hpp detail/kernels.inl detail/kernels/across_lanes.inl detail/kernels/bf16_dots.inl
  detail/kernels/dim_lanes.inl detail/kernels/functions.inl detail/kernels/half_vectors.inl
  detail/kernels/row_lanes.inl detail/kernels/score_masks.inl detail/kernels/table.inl
  detail/kernels/transpose.inl detail/kernels/vectors.inl
  detail/linear_call.hpp detail/mask_checker.hpp
  detail/mask_stage.hpp detail/matrix_stages.hpp detail/micro_kernels.hpp detail/rotary_rows.hpp
  detail/row_tile.hpp detail/scratch.hpp detail/split_states.hpp detail/tile_stages.hpp
  detail/token_cache.hpp
  linear.hpp mask.hpp masks/concept.hpp masks/function.hpp masks/positional.hpp masks/tensor.hpp
  online_softmax.hpp rotary.hpp)
set(level_4
  attention.hpp detail/heatmap_scale.hpp detail/inspection_text.hpp
  detail/inspection_warnings.hpp detail/ragged_call.hpp kv_cache.hpp merge.hpp ragged.hpp
  reference.hpp)
set(level_5
  attention_block.hpp cost.hpp detail/layer_calls.hpp detail/layer_pass.hpp
  detail/layer_weights.hpp heatmap.hpp inspect.hpp multi_head.hpp)
set(level_6 attn.hpp)

# Not part of the umbrella attn.hpp: the oracle of the tests, and what needs -fopenmp.
set(outside_umbrella reference.hpp openmp.hpp)

# What only one header may speak of (regular expression, header).
set(only_in
  "__cpp_exceptions|_CPPUNWIND" config.hpp
  "_OPENMP|omp_|#pragma omp" openmp.hpp
  "std::thread|std::async|std::jthread|pthread_" executor.hpp)
# What no header may say.
set(nowhere "getenv|setNbThreads|omp_set_|fesetround|feenableexcept|_MM_SET_|using namespace")

set(problems "")
macro(problem)
  string(CONCAT text ${ARGN})
  string(APPEND problems "  ${text}\n")
endmacro()

# The headers that `file` includes from attn/, and all lines of code (comments dropped).
function(read_source file out_includes out_code)
  file(READ ${file} text)
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX MATCHALL "#[ \t]*include[ \t]*[\"<]attn/[^\">]+" includes "${text}")
  list(TRANSFORM includes REPLACE ".*[\"<]attn/" "")
  set(${out_includes} ${includes} PARENT_SCOPE)
  set(${out_code} "${text}" PARENT_SCOPE)
endfunction()

foreach(level RANGE 6)
  foreach(header IN LISTS level_${level})
    set(level_of_${header} ${level})
    if(NOT EXISTS ${ROOT}/include/attn/${header})
      problem("${header} is in the table of levels, but does not exist")
    endif()
  endforeach()
endforeach()

file(GLOB_RECURSE headers RELATIVE ${ROOT}/include/attn ${ROOT}/include/attn/*)
foreach(header IN LISTS headers)
  if(NOT DEFINED level_of_${header})
    problem("${header} is missing from the table of levels in layers.cmake")
    set(level_of_${header} 6)
  endif()
  set(level ${level_of_${header}})

  file(STRINGS ${ROOT}/include/attn/${header} first_line LIMIT_COUNT 1)
  # A file without a level of its own (.inl) is a part of the header that includes it.
  if(header MATCHES "\\.hpp$" AND NOT first_line MATCHES "^// attn/${header} - level ${level}: ")
    problem("${header} must begin with '// attn/${header} - level ${level}: '")
  endif()

  read_source(${ROOT}/include/attn/${header} includes code)
  set(includes_of_${header} ${includes})
  foreach(included IN LISTS includes)
    if(NOT DEFINED level_of_${included})
      if(NOT included IN_LIST headers)
        problem("${header} includes ${included}, which does not exist")
      endif()
    elseif(level_of_${included} GREATER level)
      problem("${header} (level ${level}) includes ${included} (level ${level_of_${included}})")
    endif()
  endforeach()

  set(rules ${only_in})
  while(rules)
    list(POP_FRONT rules pattern owner)
    if(NOT header STREQUAL owner AND code MATCHES "(${pattern})")
      problem("${header} says '${CMAKE_MATCH_1}', which belongs in ${owner} alone")
    endif()
  endwhile()
  if(code MATCHES "(${nowhere})")
    problem("${header} says '${CMAKE_MATCH_1}', which no header of a library may")
  endif()
endforeach()

# Cycles: headers whose includes are all placed are placed in turn; what is left goes round.
set(placed "")
set(left ${headers})
set(moved TRUE)
while(moved)
  set(moved FALSE)
  foreach(header IN LISTS left)
    set(waits_for ${includes_of_${header}})
    list(FILTER waits_for EXCLUDE REGEX "^$")
    list(REMOVE_ITEM waits_for ${placed} "")
    if(NOT waits_for)
      list(APPEND placed ${header})
      list(REMOVE_ITEM left ${header})
      set(moved TRUE)
    endif()
  endforeach()
endwhile()
if(left)
  list(JOIN left " " cycle)
  problem("these headers include one another in a cycle: ${cycle}")
endif()

# The umbrella reaches every public header; the reference shares nothing with what it checks.
if("attn.hpp" IN_LIST headers)
  set(reached attn.hpp)
  set(next attn.hpp)
  while(next)
    list(POP_FRONT next header)
    foreach(included IN LISTS includes_of_${header})
      if(NOT included IN_LIST reached)
        list(APPEND reached ${included})
        list(APPEND next ${included})
      endif()
    endforeach()
  endwhile()
  foreach(header IN LISTS headers)
    if(header IN_LIST outside_umbrella)
      if(header IN_LIST reached)
        problem("attn.hpp reaches ${header}, which must be included by name")
      endif()
    elseif(NOT header IN_LIST reached)
      problem("attn.hpp does not reach ${header}")
    endif()
  endforeach()
endif()
foreach(included IN LISTS includes_of_reference.hpp)
  if(included MATCHES "^detail/|mask")
    problem("reference.hpp includes ${included}: it must share nothing with what it checks")
  endif()
endforeach()

file(GLOB examples ${ROOT}/examples/*)
foreach(example IN LISTS examples)
  if(IS_DIRECTORY ${example})
    continue()
  endif()
  read_source(${example} includes code)
  if(code MATCHES "(attn/detail/|detail::)")
    cmake_path(GET example FILENAME name)
    problem("examples/${name} says '${CMAKE_MATCH_1}': examples use public names alone")
  endif()
endforeach()

list(LENGTH headers count)
if(problems)
  message(FATAL_ERROR "The layers of include/attn (${count} headers) are broken:\n${problems}")
endif()
message(STATUS "${count} headers, every arrow points downward")

# The CPU back end without its AMX kernels.
#
# On a processor with AMX (Sapphire Rapids and later) they crash on this architecture in prefill, and give a row other
# bits in company than alone. The AVX-512 kernels, which take their place, pass the whole exactness matrix there.
# Off are the instruction sets, since llama.cpp asks the compiler, not an option, whether to compile these kernels.

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|i[3-6]86)$" OR MSVC)
  return()
endif()

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" LUCEBOX_KNOWS_AMX)
if(NOT LUCEBOX_KNOWS_AMX) # nor can it compile the kernels
  return()
endif()

# One target, or one for each CPU variant. After -march, so that these have the last word.
get_property(lucebox_cpu_targets DIRECTORY "${LUCEBOX_SOURCE_DIR}/ggml/src" PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER lucebox_cpu_targets INCLUDE REGEX "^ggml-cpu($|-[^-]+$)")
foreach(target IN LISTS lucebox_cpu_targets)
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY" AND NOT type STREQUAL "UTILITY")
    target_compile_options(${target} PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
  endif()
endforeach()

# Where llama.cpp comes from, and what it is.
#
# Sets LUCEBOX_SOURCE_DIR, LUCEBOX_UPSTREAM_BUILD (as in "b11434") and LUCEBOX_SERIES_HASH (the first twelve digits).

if(LUCEBOX_LLAMA_CPP_DIR)
  get_filename_component(LUCEBOX_SOURCE_DIR "${LUCEBOX_LLAMA_CPP_DIR}" ABSOLUTE)
  if(NOT EXISTS "${LUCEBOX_SOURCE_DIR}/include/llama.h")
    message(FATAL_ERROR
      "LUCEBOX_LLAMA_CPP_DIR is '${LUCEBOX_SOURCE_DIR}', which holds no include/llama.h.\n"
      "Point it at the top of a llama.cpp checkout, or unset it to build the pinned, patched sources.")
  endif()
  set(LUCEBOX_UPSTREAM_BUILD "custom")
  set(LUCEBOX_SERIES_HASH "custom")
  return()
endif()

set(LUCEBOX_SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

# Configure again when the pin or a patch changes.
file(GLOB LUCEBOX_PATCH_FILES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/patches/*.patch")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${CMAKE_CURRENT_SOURCE_DIR}/vendor/upstream.toml"
  "${CMAKE_CURRENT_SOURCE_DIR}/patches/series"
  ${LUCEBOX_PATCH_FILES})

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/scripts/lucebox-patches" apply --fetch --json
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  RESULT_VARIABLE LUCEBOX_APPLY_RESULT
  OUTPUT_VARIABLE LUCEBOX_APPLY_REPORT)
if(NOT LUCEBOX_APPLY_RESULT EQUAL 0)
  message(FATAL_ERROR "vendor/llama.cpp could not be made ready; the reason stands above.")
endif()

file(READ "${LUCEBOX_SOURCE_DIR}/.lucebox-stamp.json" LUCEBOX_STAMP)
string(JSON LUCEBOX_UPSTREAM_BUILD GET "${LUCEBOX_STAMP}" upstream build)
string(JSON LUCEBOX_SERIES_HASH GET "${LUCEBOX_STAMP}" series_hash)
string(SUBSTRING "${LUCEBOX_SERIES_HASH}" 0 12 LUCEBOX_SERIES_HASH)

# A tree with changes that are in no patch, or in the middle of an edit, is not what the series gives.
string(JSON LUCEBOX_EDITING GET "${LUCEBOX_APPLY_REPORT}" session)
string(JSON LUCEBOX_NUM_MODIFIED LENGTH "${LUCEBOX_APPLY_REPORT}" modified)
string(JSON LUCEBOX_NUM_ADDED LENGTH "${LUCEBOX_APPLY_REPORT}" added)
if(LUCEBOX_EDITING OR LUCEBOX_NUM_MODIFIED OR LUCEBOX_NUM_ADDED)
  string(APPEND LUCEBOX_SERIES_HASH "+")
endif()

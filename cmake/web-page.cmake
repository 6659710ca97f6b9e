# Whether llama-server's web page is made and built in. Making it takes npm, the network and some minutes the first time.
# Where that fails the build goes on without, and the server shows a page that says how to get it.

set(lucebox_page OFF)
if(NOT LUCEBOX_WEB_PAGE STREQUAL "OFF")
  find_program(LUCEBOX_NPM NAMES npm npm.cmd)
  # a source distribution has no sources of the page
  if(LUCEBOX_NPM AND EXISTS "${LUCEBOX_SOURCE_DIR}/tools/ui/package.json")
    set(lucebox_page ON)
  elseif(LUCEBOX_WEB_PAGE STREQUAL "ON")
    message(FATAL_ERROR
      "LUCEBOX_WEB_PAGE=ON, but the page cannot be made: npm is '${LUCEBOX_NPM}', and its sources are looked for in "
      "${LUCEBOX_SOURCE_DIR}/tools/ui.\nInstall Node.js with npm and build in a checkout, or leave the option out.")
  endif()
endif()
set(LLAMA_BUILD_UI ${lucebox_page} CACHE BOOL "set by pylucebox from LUCEBOX_WEB_PAGE" FORCE)
message(STATUS "pylucebox web page: ${lucebox_page}")

# Functions that the folders use to describe themselves.

# kvc_target_defaults(<target>): warnings, include folders and checks of this project. Includes are
# written from the root of public headers ("kvc/status.h"), from src ("base/bytes.h") or from the
# root of the repository ("testing/seed.h").
function(kvc_target_defaults target)
  target_compile_options(${target} PRIVATE ${KVC_WARNINGS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  if(KVC_DCHECKS)
    target_compile_definitions(${target} PRIVATE KVC_DCHECKS=1)
  endif()
endfunction()

# kvc_sources(<file>...): adds sources of the calling folder to the library.
function(kvc_sources)
  target_sources(kvc PRIVATE ${ARGN})
endfunction()

# kvc_support_library(<name> SOURCES <file>... [LINK <target>...]): a static library that is not
# installed and never linked into kvc (testing, benchmarks). It may use private headers of the core.
function(kvc_support_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
      "kvc_support_library(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  kvc_target_defaults(${name})
  target_link_libraries(${name} PUBLIC kvc::kvc ${arg_LINK} PRIVATE kvc_private_headers)
endfunction()

# GoogleTest executables and their ctest entries. Without KVC_BUILD_TESTS, kvc_test() does nothing.

if(KVC_BUILD_TESTS OR KVC_PYTHON_TESTS)
  find_package(GTest 1.12 REQUIRED)
endif()
if(KVC_BUILD_TESTS)
  enable_testing()
  include(GoogleTest)
endif()

set(KVC_TEST_TIMEOUT_S 120 CACHE STRING "Limit of one C++ test in seconds")

# kvc_test(<name> SOURCES <file>... [LINK <target>...] [LABELS <label>...]
#          [DEFINITIONS <definition>...])
#
# One executable, one ctest entry per TEST in it. Label `fast` unless other labels are given.
# KVC_SOURCE_DIR is the root of the repository, for golden files.
function(kvc_test name)
  if(NOT KVC_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;LABELS;DEFINITIONS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR
      "kvc_test(${name}): needs SOURCES; unknown arguments: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  add_executable(${name} ${arg_SOURCES})
  kvc_target_defaults(${name})
  # Test code is compiled once and runs briefly; the library that it tests keeps its own level.
  target_compile_options(${name} PRIVATE -O0)
  target_compile_definitions(${name} PRIVATE
    ${arg_DEFINITIONS} KVC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE
    kvc::kvc ${arg_LINK} kvc_private_headers OpenSSL::Crypto GTest::gtest_main)
  gtest_discover_tests(${name}
    TEST_PREFIX "${name}."
    DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${KVC_TEST_TIMEOUT_S})
endfunction()

# kvc_test_program(<name> SOURCES <file>... [LINK <target>...] [DEFINITIONS <definition>...])
#
# An executable that sees the private headers, for what is no kvc_test(): simulations, and tests
# together with product files that are compiled once more with planted bugs.
function(kvc_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;DEFINITIONS")
  add_executable(${name} ${arg_SOURCES})
  kvc_target_defaults(${name})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${name} PRIVATE
    ${arg_LINK} kvc::kvc kvc_private_headers OpenSSL::Crypto)
endfunction()

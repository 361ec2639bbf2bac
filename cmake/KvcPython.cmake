# The only place that looks for Python. bindings/ then uses nanobind_add_module() and
# Python_add_library().

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE kvc_nanobind_failed)
  if(kvc_nanobind_failed)
    message(FATAL_ERROR
      "${Python_EXECUTABLE} has no nanobind: run `make setup`, or pip install nanobind")
  endif()
endif()
# Its package accepts only its own major version when asked for one.
find_package(nanobind REQUIRED CONFIG)
if(nanobind_VERSION VERSION_LESS 2.2)
  message(FATAL_ERROR "nanobind ${nanobind_VERSION} is too old: 2.2 or newer is needed")
endif()

# kvc_exempt_nanobind(<folder>): nanobind's own sources, compiled there, are not ours to lint.
function(kvc_exempt_nanobind folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER targets INCLUDE REGEX "^nanobind")
  if(targets)
    set_target_properties(${targets} PROPERTIES CXX_CLANG_TIDY "")
  endif()
endfunction()

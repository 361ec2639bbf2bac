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
find_package(nanobind 2.0 REQUIRED CONFIG)

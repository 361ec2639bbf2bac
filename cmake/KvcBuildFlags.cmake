# Language level, warnings and sanitizers, the same for every target of this project.
#
# Targets take them through kvc_target_defaults() (KvcTargets.cmake); sanitizer flags are global,
# because mixing instrumented and plain objects gives false reports.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(KVC_WARNINGS
  -Wall
  -Wextra
  -Werror
  -Wshadow
  -Wconversion
  -Wnon-virtual-dtor
  -Woverloaded-virtual
  -Wimplicit-fallthrough
  -Wunused-result)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND KVC_WARNINGS -Wthread-safety)
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 at -O3 reports overlapping copies inside `"text" + std::string()`, which has none.
  list(APPEND KVC_WARNINGS -Wno-restrict)
endif()

if(KVC_SANITIZE STREQUAL "address")
  set(kvc_sanitize_flags
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(KVC_SANITIZE STREQUAL "thread")
  set(kvc_sanitize_flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT KVC_SANITIZE STREQUAL "")
  message(FATAL_ERROR "KVC_SANITIZE is '${KVC_SANITIZE}': use 'address', 'thread' or nothing")
endif()
if(kvc_sanitize_flags)
  add_compile_options(${kvc_sanitize_flags})
  add_link_options(${kvc_sanitize_flags})
endif()

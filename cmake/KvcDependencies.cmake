# Everything comes from the system's packages (scripts/apt-packages.txt); nothing is downloaded.
# docs/dependencies.md says why each is needed.

find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Threads REQUIRED)

find_path(KVC_ASIO_INCLUDE_DIR asio.hpp REQUIRED)
find_path(KVC_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_path(KVC_TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
find_path(KVC_SPDLOG_INCLUDE_DIR spdlog/spdlog.h REQUIRED)
find_path(KVC_FMT_INCLUDE_DIR fmt/format.h REQUIRED)
mark_as_advanced(
  KVC_ASIO_INCLUDE_DIR
  KVC_XXHASH_INCLUDE_DIR
  KVC_TOMLPLUSPLUS_INCLUDE_DIR
  KVC_SPDLOG_INCLUDE_DIR
  KVC_FMT_INCLUDE_DIR)

# Header-only parts, compiled into our objects, so that the installed library and the wheel need no
# shared library but libcrypto. Private to the core: no public header includes any of them.
add_library(kvc_private_headers INTERFACE)
target_include_directories(kvc_private_headers SYSTEM INTERFACE
  ${KVC_ASIO_INCLUDE_DIR}
  ${KVC_XXHASH_INCLUDE_DIR}
  ${KVC_TOMLPLUSPLUS_INCLUDE_DIR}
  ${KVC_SPDLOG_INCLUDE_DIR}
  ${KVC_FMT_INCLUDE_DIR})
# ASIO_DISABLE_VISIBILITY: Asio would export its inline functions and static data from the extension
# module, where they would be one with those of any other Asio in the process, of whatever version.
target_compile_definitions(kvc_private_headers INTERFACE
  ASIO_STANDALONE
  ASIO_NO_DEPRECATED
  ASIO_DISABLE_VISIBILITY
  XXH_INLINE_ALL
  TOML_HEADER_ONLY=1
  FMT_HEADER_ONLY=1
  SPDLOG_FMT_EXTERNAL=1)
if(KVC_SANITIZE STREQUAL "thread")
  # The sanitizer knows no fences, and g++ warns of each; the mutexes of Asio order everything too.
  target_compile_definitions(kvc_private_headers INTERFACE ASIO_DISABLE_FENCED_BLOCK)
endif()
target_link_libraries(kvc_private_headers INTERFACE nlohmann_json::nlohmann_json)

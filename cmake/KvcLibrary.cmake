# The library kvc and its CMake package: find_package(kvc), target kvc::kvc.

file(GLOB kvc_public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/kvc/*.h)

add_library(kvc STATIC)
add_library(kvc::kvc ALIAS kvc)
kvc_target_defaults(kvc)
target_compile_features(kvc PUBLIC cxx_std_20)
target_link_libraries(kvc
  PUBLIC Threads::Threads
  PRIVATE OpenSSL::Crypto $<BUILD_INTERFACE:kvc_private_headers> ${CMAKE_DL_LIBS})
target_sources(kvc PUBLIC
  FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${kvc_public_headers})
# Target all_verify_interface_header_sets proves that each public header compiles alone.
set_target_properties(kvc PROPERTIES
  VERIFY_INTERFACE_HEADER_SETS ON
  OUTPUT_NAME kvc
  EXPORT_NAME kvc)

install(TARGETS kvc EXPORT kvc COMPONENT kvc
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT kvc NAMESPACE kvc:: FILE kvcTargets.cmake COMPONENT kvc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvc)
configure_package_config_file(cmake/kvcConfig.cmake.in ${PROJECT_BINARY_DIR}/kvcConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvc)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/kvcConfig.cmake ${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvc
  COMPONENT kvc)

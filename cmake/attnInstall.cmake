# Installs headers and the package that find_package(attn) finds. All paths in it are relative to
# the package, so that the installed tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(ATTN_INSTALL_COMPILED)
  set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
  set(attn_architecture "")
  set_target_properties(attn_compiled PROPERTIES EXCLUDE_FROM_ALL OFF)
  install(TARGETS attn_compiled EXPORT attnTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
else()
  set(attn_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/attn)  # headers only: no architecture
  set(attn_architecture ARCH_INDEPENDENT)
endif()

install(DIRECTORY include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(TARGETS attn EXPORT attnTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})

# Before 1.0 a minor version may change names.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ${attn_architecture})
install(
  FILES cmake/attnConfig.cmake cmake/attnCheckEigen.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake
  DESTINATION ${attn_package_dir})

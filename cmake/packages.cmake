# Packages, by cpack in the build folder: one .deb for each component of install.cmake, and one .tar.gz with all of
# them. With -DCMAKE_INSTALL_PREFIX=/usr libraries go to Debian's folder for the machine's architecture.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME tsr)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGE_VENDOR "The TSR authors")
set(CPACK_PACKAGE_CONTACT "The TSR authors <tsr@localhost>" CACHE STRING "Maintainer that packages name")
set(CPACK_PACKAGE_FILE_NAME tsr-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

# package(COMPONENT NAME SECTION SUMMARY DEPENDS...): DEPENDS are components, whose packages have the same version.
set(CPACK_COMPONENTS_ALL)
function(package component name section summary)
  string(TOUPPER ${component} COMPONENT)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${COMPONENT}_DESCRIPTION "${summary}\n${PROJECT_DESCRIPTION}." PARENT_SCOPE)
  set(CPACK_COMPONENT_${COMPONENT}_DEPENDS ${ARGN} PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
  # Debian's policy wants one in each package; `cmake --install` leaves it out.
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name} RENAME copyright
    COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

package(runtime libtsr${TSR_SOVERSION} libs "Tensor-split runtime, library")
package(development libtsr-dev libdevel "Tensor-split runtime, development files" runtime)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS # for programs that link libtsr.a
  "libhwloc-dev, libpcre2-dev, libexpat1-dev, libarchive-dev, pkg-config, tsr (= ${PROJECT_VERSION})")
if(TSR_BUILD_TOOLS)
  package(tools tsr utils "Tensor-split runtime, command and manual")
endif()
if(TSR_HAVE_MPI)
  package(mpi libtsr-mpi${TSR_SOVERSION} libs "Tensor-split runtime, transport over MPI" runtime)
  package(mpi_development libtsr-mpi-dev libdevel "Tensor-split runtime, development files of the transport over MPI"
    development mpi)
endif()

# The linker's cache is brought up to date once for all packages that dpkg installs together.
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_MPI_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_THREADS 0) # as many as there are cores
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
include(CPack)

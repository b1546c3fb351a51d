# What `cmake --install` puts where: libraries, headers, the CMake package tsr, tsr.pc, the tool with its manual
# pages and completions, licence and docs. The prefix may be moved afterwards: nothing in it holds an absolute path.
# The components runtime, development, tools, mpi and mpi_development become packages of their own (packages.cmake).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tsr)

# install_library(COMPONENT DEVELOPERS EXPORT_SET TARGET...): what programs are started with goes to one component, what
# they are compiled with to the other.
function(install_library component developers export)
  install(TARGETS ${ARGN} EXPORT ${export}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${developers}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} NAMELINK_COMPONENT ${developers})
  install(EXPORT ${export} NAMESPACE tsr:: DESTINATION ${package_dir} COMPONENT ${developers})
endfunction()

# Two export sets: who links the shared library needs no hwloc, PCRE2, Expat or libarchive to build against.
install_library(runtime development tsr-static tsr_static)
install_library(runtime development tsr-shared tsr_shared)
if(TSR_HAVE_MPI)
  install_library(mpi mpi_development tsr-mpi tsr_mpi_static tsr_mpi_shared)
endif()
install(DIRECTORY include/tsr ${PROJECT_BINARY_DIR}/include/tsr DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/tsrConfig.cmake.in ${PROJECT_BINARY_DIR}/tsrConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tsrConfigVersion.cmake
  COMPATIBILITY SameMinorVersion) # until 1.0 a minor version may change the interface
install(FILES ${PROJECT_BINARY_DIR}/tsrConfig.cmake ${PROJECT_BINARY_DIR}/tsrConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

# pkg-config knows where tsr.pc lies (pcfiledir); the rest is relative to that.
file(RELATIVE_PATH TSR_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TSR_PC_TO_PREFIX "${TSR_PC_TO_PREFIX}")
# Not Requires.private: that would ask for the .pc files even where libtsr.so needs none of them, and under --static
# for what a static hwloc would drag along.
list(JOIN HWLOC_LDFLAGS " " hwloc_libs)
list(JOIN PCRE2_LDFLAGS " " pcre2_libs)
list(JOIN EXPAT_LDFLAGS " " expat_libs)
list(JOIN LIBARCHIVE_LDFLAGS " " libarchive_libs)
set(TSR_PC_LIBS_PRIVATE "${hwloc_libs} ${pcre2_libs} ${expat_libs} ${libarchive_libs}")
if(TSR_HAVE_CUDA)
  string(APPEND TSR_PC_LIBS_PRIVATE " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
configure_file(cmake/tsr.pc.in ${PROJECT_BINARY_DIR}/tsr.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tsr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
if(TSR_HAVE_MPI)
  configure_file(cmake/tsr-mpi.pc.in ${PROJECT_BINARY_DIR}/tsr-mpi.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tsr-mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT mpi_development)
endif()

if(TSR_BUILD_TOOLS)
  set(share ${CMAKE_INSTALL_DATAROOTDIR})
  install(TARGETS tsr_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(FILES ${TSR_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
  if(TSR_COMPLETIONS)
    install(FILES ${completions_dir}/bash DESTINATION ${share}/bash-completion/completions RENAME tsr COMPONENT tools)
    install(FILES ${completions_dir}/zsh DESTINATION ${share}/zsh/site-functions RENAME _tsr COMPONENT tools)
  endif()
endif()
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/tsr)
install(FILES LICENSE DESTINATION ${doc_dir} COMPONENT tools)
install(FILES README.md CHANGELOG.md SECURITY.md DESTINATION ${doc_dir} COMPONENT tools OPTIONAL)
install(DIRECTORY docs DESTINATION ${doc_dir} COMPONENT tools FILES_MATCHING PATTERN "*.md" PATTERN "*.json" PATTERN "*.svg")
# Pages keep their places to each other, so that links resolve; of links to sources the words stay.
install(CODE "set(pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${doc_dir}\")" COMPONENT tools)
install(CODE [=[
  file(GLOB_RECURSE pages "${pages}/*.md")
  foreach(page IN LISTS pages)
    file(READ "${page}" text)
    string(REGEX REPLACE "\\[([^]]*)\\]\\((\\.\\./)*(src|tests|bench|python|include|examples|CONTRIBUTING.md)(/[^)]*)?\\)" "\\1" text "${text}")
    file(WRITE "${page}" "${text}")
  endforeach()
]=] COMPONENT tools)
include(cmake/packages.cmake)

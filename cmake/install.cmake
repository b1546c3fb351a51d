# What `cmake --install` puts where: libraries, headers, the CMake package tsr, tsr.pc, the tool with its manual
# pages, licence and docs. The prefix may be moved afterwards: nothing in it holds an absolute path.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tsr)

# Two export sets: who links the shared library needs no hwloc, PCRE2, Expat or libarchive to build against.
foreach(kind static shared)
  install(TARGETS tsr_${kind} EXPORT tsr-${kind}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT tsr-${kind} NAMESPACE tsr:: DESTINATION ${package_dir})
endforeach()
if(TSR_HAVE_MPI)
  install(TARGETS tsr_mpi_static tsr_mpi_shared EXPORT tsr-mpi
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT tsr-mpi NAMESPACE tsr:: DESTINATION ${package_dir})
endif()
install(DIRECTORY include/tsr ${PROJECT_BINARY_DIR}/include/tsr DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/tsrConfig.cmake.in ${PROJECT_BINARY_DIR}/tsrConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tsrConfigVersion.cmake
  COMPATIBILITY SameMinorVersion) # until 1.0 a minor version may change the interface
install(FILES ${PROJECT_BINARY_DIR}/tsrConfig.cmake ${PROJECT_BINARY_DIR}/tsrConfigVersion.cmake
  DESTINATION ${package_dir})

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
install(FILES ${PROJECT_BINARY_DIR}/tsr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TSR_HAVE_MPI)
  configure_file(cmake/tsr-mpi.pc.in ${PROJECT_BINARY_DIR}/tsr-mpi.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tsr-mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

if(TSR_BUILD_TOOLS)
  install(TARGETS tsr_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${TSR_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  if(TSR_COMPLETIONS)
    install(FILES ${completions_dir}/bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions RENAME tsr)
    install(FILES ${completions_dir}/zsh DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/site-functions RENAME _tsr)
  endif()
endif()
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/tsr)
install(FILES LICENSE DESTINATION ${doc_dir})
install(FILES README.md SECURITY.md DESTINATION ${doc_dir} OPTIONAL)
install(DIRECTORY docs/ DESTINATION ${doc_dir} FILES_MATCHING PATTERN "*.md" PATTERN "*.json")

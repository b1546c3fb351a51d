# libtsr_mpi, the transport between processes over MPI, where MPI is installed. A library of its own, so that libtsr
# links none.
#
# TSR_MPI: AUTO takes what is there, ON insists, OFF builds without.
set(TSR_MPI AUTO CACHE STRING "Build libtsr_mpi: AUTO, ON or OFF")

set(TSR_HAVE_MPI OFF)
if(TSR_MPI AND NOT CMAKE_CROSSCOMPILING)
  find_package(MPI QUIET COMPONENTS C)
  if(NOT MPI_C_FOUND AND NOT TSR_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "TSR_MPI=${TSR_MPI}, but there is no MPI for C (mpicc in PATH). Install one (Debian: "
                        "libopenmpi-dev), or leave TSR_MPI at AUTO.")
  endif()
endif()

if(MPI_C_FOUND)
  set(TSR_HAVE_MPI ON)
  add_library(tsr_mpi_objects OBJECT ${PROJECT_SOURCE_DIR}/src/comm/mpi/transport.c)
  target_include_directories(tsr_mpi_objects PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(tsr_mpi_objects PRIVATE tsr_flags tsr_hardening MPI::MPI_C)
  foreach(kind static shared)
    string(TOUPPER ${kind} KIND)
    set(target tsr_mpi_${kind})
    add_library(${target} ${KIND} $<TARGET_OBJECTS:tsr_mpi_objects>)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME tsr_mpi EXPORT_NAME mpi_${kind}
      VERSION ${PROJECT_VERSION} SOVERSION ${TSR_SOVERSION} LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PRIVATE MPI::MPI_C)
    target_link_options(${target} PRIVATE $<TARGET_PROPERTY:tsr_hardening,INTERFACE_LINK_OPTIONS>)
    add_library(tsr::mpi_${kind} ALIAS ${target})
  endforeach()
  add_library(tsr::mpi ALIAS tsr_mpi_shared)
endif()

# Open MPI refuses root, and more processes than cores, unless it is told.
set(TSR_MPI_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)

# mpi_test(NAME N PROGRAM ARGUMENT...): a test in N processes, on this machine whatever it has, as root too.
function(mpi_test name n)
  if(NOT TSR_BUILD_TESTS OR NOT MPIEXEC_EXECUTABLE)
    return()
  endif()
  add_test(NAME ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} ${MPIEXEC_PREFLAGS} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT "${TSR_MPI_TEST_ENVIRONMENT}")
endfunction()

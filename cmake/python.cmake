# The Python package of python/: declarations for cffi from the public headers, what pip installs, and the test.
option(TSR_PYTHON "Make what the Python package holds, as python/pyproject.toml wants it" OFF)
if(NOT TSR_PYTHON AND NOT TSR_BUILD_TESTS)
  return()
endif()

set(declarations ${PROJECT_BINARY_DIR}/python/declarations.h)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/tsr/*.h)
add_custom_command(OUTPUT ${declarations}
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/make-declarations ${PROJECT_BINARY_DIR}/include ${CMAKE_C_COMPILER} ${declarations}
  DEPENDS ${headers} ${PROJECT_BINARY_DIR}/include/tsr/version.h ${PROJECT_SOURCE_DIR}/scripts/make-declarations
  VERBATIM)
add_custom_target(tsr_python ALL DEPENDS ${declarations})
add_dependencies(tsr_python tsr_shared)

if(TSR_PYTHON)
  # A wheel holds no symbolic links, so the library has one name.
  install(FILES $<TARGET_FILE:tsr_shared> DESTINATION tsr RENAME libtsr.so)
  install(FILES ${declarations} LICENSE DESTINATION tsr)
endif()

# A sanitizer's library cannot be loaded by a Python that was built without.
if(TSR_BUILD_TESTS AND TARGET tsr_tool AND NOT TSR_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME python COMMAND ${PROJECT_SOURCE_DIR}/python/tests/run WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(python PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 ENVIRONMENT
    "TSR_LIBRARY=$<TARGET_FILE:tsr_shared>;TSR_DECLARATIONS=${declarations};TSR_TOOL=$<TARGET_FILE:tsr_tool>;TSR_CC=${CMAKE_C_COMPILER};TSR_GENERATED=${PROJECT_BINARY_DIR}/include")
endif()

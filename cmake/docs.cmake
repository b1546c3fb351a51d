# The API reference, made from the headers: `cmake --build BUILD_DIR --target docs`. Not part of `all`.
set(TSR_DOCS_DIR ${PROJECT_BINARY_DIR}/docs)
set(TSR_DOCS_INCLUDE ${PROJECT_BINARY_DIR}/include) # version.h
configure_file(docs/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY) # scripts/check-api-docs reads it too

find_program(DOXYGEN_EXECUTABLE doxygen)
mark_as_advanced(DOXYGEN_EXECUTABLE)
if(DOXYGEN_EXECUTABLE AND PROJECT_IS_TOP_LEVEL)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E make_directory ${TSR_DOCS_DIR}
    COMMAND ${DOXYGEN_EXECUTABLE} ${PROJECT_BINARY_DIR}/Doxyfile
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMENT "Making the API reference in ${TSR_DOCS_DIR}/html"
    VERBATIM)
endif()

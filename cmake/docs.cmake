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

# Manual pages and completions, from the options tables of the tool. A cross-compiled one runs in the emulator, if there
# is one.
set(TSR_MAN_PAGES)
set(TSR_COMPLETIONS)
if(TARGET tsr_tool AND (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
  set(man_dir ${PROJECT_BINARY_DIR}/man/man1)
  file(MAKE_DIRECTORY ${man_dir})
  foreach(page tsr tsr-topo tsr-show tsr-plan tsr-fit tsr-run tsr-embed tsr-perplexity tsr-bench tsr-bench-links tsr-synth tsr-doctor)
    string(REGEX REPLACE "^tsr-?" "" words ${page})
    string(REPLACE "-" ";" words "${words}")
    add_custom_command(OUTPUT ${man_dir}/${page}.1.gz # compressed, as Debian's policy wants them
      COMMAND tsr_tool help --man ${words} > ${man_dir}/${page}.1
      COMMAND gzip -9 -n -f ${man_dir}/${page}.1
      DEPENDS tsr_tool)
    list(APPEND TSR_MAN_PAGES ${man_dir}/${page}.1.gz)
  endforeach()
  set(completions_dir ${PROJECT_BINARY_DIR}/completions)
  file(MAKE_DIRECTORY ${completions_dir})
  foreach(shell bash zsh)
    add_custom_command(OUTPUT ${completions_dir}/${shell}
      COMMAND tsr_tool completion ${shell} > ${completions_dir}/${shell}
      DEPENDS tsr_tool)
    list(APPEND TSR_COMPLETIONS ${completions_dir}/${shell})
  endforeach()
  add_custom_target(tsr_man ALL DEPENDS ${TSR_MAN_PAGES} ${TSR_COMPLETIONS})
endif()

# Compiler flags that every target of the project shares, as one interface library.
add_library(tsr_flags INTERFACE)
set(TSR_FLAGS
  -Wall -Wextra -Wshadow -Wpointer-arith -Wno-missing-field-initializers
  # Contraction is decided in the source (explicit fma), never by the compiler: bits must not depend on flags.
  -ffp-contract=off)
if(TSR_WERROR)
  list(APPEND TSR_FLAGS -Werror)
endif()
if(TSR_SANITIZE)
  # -g1, since reports name lines and no variables, which take half of a program's size and a third of gcc's time.
  list(APPEND TSR_FLAGS -fsanitize=${TSR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  target_link_options(tsr_flags INTERFACE -fsanitize=${TSR_SANITIZE})
endif()

# nvcc hands them to the host compiler one by one; its own generated code does not survive -Wextra's company.
set(TSR_NVCC_FLAGS -Xcompiler=-Wall)
foreach(flag ${TSR_FLAGS})
  if(NOT flag MATCHES "^-(W|g$)")
    list(APPEND TSR_NVCC_FLAGS "SHELL:-Xcompiler \"${flag}\"")
  endif()
endforeach()
target_compile_options(tsr_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${TSR_FLAGS}>"
  "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${TSR_NVCC_FLAGS}>")
target_compile_definitions(tsr_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)

# What is installed is hardened in release builds, as distributions do with their packages: canaries on stacks, checked
# copies, and tables of addresses that are read-only once the program has started. scripts/check-symbols looks for them.
add_library(tsr_hardening INTERFACE)
if(NOT TSR_SANITIZE)
  set(release "$<CONFIG:Release,RelWithDebInfo,MinSizeRel>")
  target_compile_options(tsr_hardening INTERFACE
    "$<$<AND:${release},$<COMPILE_LANGUAGE:C>>:-fstack-protector-strong;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  target_link_options(tsr_hardening INTERFACE "$<${release}:LINKER:-z,relro,-z,now>")
endif()

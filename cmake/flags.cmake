# Compiler flags that every target of the project shares, as one interface library.
add_library(tsr_flags INTERFACE)
target_compile_options(tsr_flags INTERFACE
  -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes
  -Wno-missing-field-initializers
  # Contraction is decided in the source (explicit fma), never by the compiler: bits must not depend on flags.
  -ffp-contract=off)
target_compile_definitions(tsr_flags INTERFACE _GNU_SOURCE)
if(TSR_WERROR)
  target_compile_options(tsr_flags INTERFACE -Werror)
endif()
if(TSR_SANITIZE)
  target_compile_options(tsr_flags INTERFACE -fsanitize=${TSR_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g)
  target_link_options(tsr_flags INTERFACE -fsanitize=${TSR_SANITIZE})
endif()

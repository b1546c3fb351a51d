# The kernels are one source, compiled once per instruction set; which one runs is decided at run time.
target_sources(tsr_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels/generic.c)

# Optimised in every build type but Debug: at -O2 the compiler keeps register tiles in memory.
# No bit depends on these: contraction is off for every target (cmake/flags.cmake), and neither errno nor floating
# point traps are used.
# psabi: the baseline has no registers for 32-byte vectors, but the functions that return them are all inlined.
set(kernel_flags $<$<NOT:$<CONFIG:Debug>>:-O3> -fno-math-errno -fno-trapping-math -Wno-psabi)
if(TSR_SANITIZE)
  # Instrumented and unrolled, the register tiles take minutes to compile. At -O1 and without the undefined-behaviour
  # checks (address and thread checks stay) it is seconds.
  list(APPEND kernel_flags -O1 -fno-sanitize=undefined)
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels/generic.c PROPERTIES COMPILE_OPTIONS "${kernel_flags}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  target_sources(tsr_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/kernels/avx2.c ${CMAKE_CURRENT_LIST_DIR}/kernels/avx512.c
    ${CMAKE_CURRENT_LIST_DIR}/kernels/avx512vnni.c)
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels/avx2.c PROPERTIES
    COMPILE_OPTIONS "${kernel_flags};${avx2_flags}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels/avx512.c PROPERTIES
    COMPILE_OPTIONS "${kernel_flags};${avx512_flags}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels/avx512vnni.c PROPERTIES
    COMPILE_OPTIONS "${kernel_flags};${avx512_flags};-mavx512vnni")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels.c PROPERTIES
    COMPILE_DEFINITIONS TSR_HAVE_X86_KERNELS)
endif()

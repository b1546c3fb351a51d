# The kernels are one source, compiled once per level of instructions; the level is chosen at run time.
set(TSR_ISAS all CACHE STRING "Instruction sets besides generic to compile kernels for: all, none, or a list")
foreach(isa IN LISTS TSR_ISAS)
  if(NOT isa MATCHES "^(all|none)$" AND NOT EXISTS ${CMAKE_CURRENT_LIST_DIR}/kernels/sets/${isa}.c)
    message(FATAL_ERROR "TSR_ISAS: there are no kernels for '${isa}'; src/host/kernels/sets has a source for each set.")
  endif()
endforeach()
if(TSR_ISAS MATCHES "avx512|amx") # whose short products are those of avx2 (kernels/quant/vector.h)
  list(APPEND TSR_ISAS avx2)
endif()

# Optimised in every build type but Debug: at -O2 the compiler keeps register tiles in memory.
# No bit depends on these: contraction is off for every target (cmake/flags.cmake), and neither errno nor floating
# point traps are used.
# psabi: the baseline has no registers for 32-byte vectors, but the functions that return them are all inlined.
# Not hardened (cmake/flags.cmake): arrays on a kernel's stack are register tiles, whose indices are constants.
set(kernel_flags $<$<NOT:$<CONFIG:Debug>>:-O3> -fno-math-errno -fno-trapping-math -Wno-psabi
  -fno-stack-protector -U_FORTIFY_SOURCE)
if(TSR_SANITIZE)
  # Instrumented and unrolled, the register tiles take minutes to compile. At -O1 and without the undefined-behaviour
  # checks (address and thread checks stay) it is less; and gcc takes a third of the time if functions with more than
  # 300 accesses of memory, rather than 7000, check addresses by calls.
  list(APPEND kernel_flags -O1 -fno-sanitize=undefined)
  if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    list(APPEND kernel_flags --param=asan-instrumentation-with-call-threshold=300)
  endif()
endif()

include(CheckCCompilerFlag)

# Compile kernels/sets/LEVEL.c with these flags, and define TSR_HAVE_LEVEL for kernels.c.
function(tsr_kernel_level level)
  if(NOT TSR_ISAS STREQUAL "all" AND NOT level IN_LIST TSR_ISAS AND NOT level STREQUAL "generic")
    return()
  endif()
  set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/kernels/sets/${level}.c)
  target_sources(tsr_objects PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${kernel_flags};${ARGN}")
  if(level STREQUAL "amx") # a test compiles them once more, on emulated tiles
    set_property(GLOBAL PROPERTY TSR_AMX_FLAGS "${kernel_flags};${ARGN}")
  endif()
  string(TOUPPER TSR_HAVE_${level} have)
  set_property(SOURCE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/kernels.c APPEND PROPERTY COMPILE_DEFINITIONS ${have})
endfunction()

tsr_kernel_level(generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set(amx_flags ${avx512_flags} -mavx512vnni -mamx-tile -mamx-int8)
  tsr_kernel_level(avx2 ${avx2_flags})
  tsr_kernel_level(avx512 ${avx512_flags})
  tsr_kernel_level(avx512vnni ${avx512_flags} -mavx512vnni)
  check_c_compiler_flag(-mavxvnni TSR_COMPILER_HAS_AVXVNNI) # gcc 11, clang 12
  if(TSR_COMPILER_HAS_AVXVNNI)
    tsr_kernel_level(avxvnni ${avx2_flags} -mavxvnni)
  endif()
  check_c_compiler_flag("-mamx-tile -mamx-int8" TSR_COMPILER_HAS_AMX) # gcc 11, clang 12
  if(TSR_COMPILER_HAS_AMX)
    tsr_kernel_level(amx ${amx_flags})
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  # With scheduling before register allocation sums are computed one after the other, and vectors are spilled to
  # memory.
  if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    list(APPEND kernel_flags -fno-schedule-insns)
  endif()
  tsr_kernel_level(neon)
  check_c_compiler_flag(-march=armv8.2-a+dotprod TSR_COMPILER_HAS_DOTPROD) # gcc 8, clang 6
  if(TSR_COMPILER_HAS_DOTPROD)
    tsr_kernel_level(dotprod -march=armv8.2-a+dotprod)
  endif()
endif()

# The CUDA device and NCCL, where a toolkit is installed. Sets TSR_HAVE_CUDA and TSR_HAVE_NCCL, and fills the
# interface library tsr_cuda_deps with what src/cuda needs to compile. Who links the library links
# the static CUDA runtime; the driver, NVML and NCCL are loaded when the program runs, where they are there.
#
# TSR_CUDA: AUTO takes what is there, ON insists, OFF builds without (the simulated machine in tests/cudasim
# needs no toolkit and is built in any case).
set(TSR_CUDA AUTO CACHE STRING "Build the CUDA device: AUTO, ON or OFF")
option(TSR_CUDA_ALL_ARCHITECTURES "Native code for every GPU generation the toolkit knows (slower build)" OFF)

set(TSR_GPU_TESTS OFF CACHE STRING "Build the tests of the CUDA device for this machine's GPUs as well: ON, OFF, or AUTO, where there is a toolkit")

set(TSR_HAVE_CUDA OFF)
set(TSR_HAVE_NCCL OFF)
add_library(tsr_cuda_deps INTERFACE)
include(CheckLanguage)

if(TSR_BUILD_TESTS)
  if(NOT CMAKE_CXX_COMPILER)
    unset(CMAKE_CXX_COMPILER CACHE) # one may have been installed since the last time
  endif()
  check_language(CXX)
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "No C++ compiler found; the simulated GPUs of the tests need one. Install one (Debian: g++), "
                        "name one in CMAKE_CXX_COMPILER, or build without tests: -DTSR_BUILD_TESTS=OFF.")
  endif()
endif()

if(TSR_CUDA)
  # A toolkit that is not in PATH is usually here.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TSR_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
    mark_as_advanced(TSR_NVCC)
    if(TSR_NVCC)
      set(CMAKE_CUDA_COMPILER ${TSR_NVCC})
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.0 QUIET)
  endif()
  if(NOT CUDAToolkit_FOUND AND NOT TSR_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TSR_CUDA=${TSR_CUDA}, but there is no CUDA toolkit of version 12 or newer (nvcc in PATH "
                        "or /usr/local/cuda). Install one, or leave TSR_CUDA at AUTO.")
  endif()
endif()

if(CUDAToolkit_FOUND)
  set(TSR_HAVE_CUDA ON)

  # Machine code of one generation runs on later minor versions of it (sm_80's on 86 and 89), and the PTX of 90
  # is compiled by the driver for anything newer, so this short list covers every GPU from Ampere on. With a GPU
  # in the machine, its own architecture is enough.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus RESULT_VARIABLE failed ERROR_QUIET)
    if(TSR_CUDA_ALL_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90)
      if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
        list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real 120)
      endif()
    elseif(failed EQUAL 0 AND gpus MATCHES "GPU 0")
      set(CMAKE_CUDA_ARCHITECTURES native)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)

  # The runtime is linked statically and the driver is loaded by it: the library starts on machines without
  # either. -fmad=false: as -ffp-contract=off in flags.cmake, only an explicit fmaf() fuses. Without exceptions and
  # guarded statics the library needs nothing of C++ at run time, so that C programs link it.
  target_include_directories(tsr_cuda_deps SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(tsr_cuda_deps INTERFACE TSR_WITH_CUDA)
  target_compile_options(tsr_cuda_deps INTERFACE 
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=-fno-exceptions;-Xcompiler=-fno-threadsafe-statics>")

  # Beside the toolkit, in the system, or in the layout of the Python package nvidia-nccl-cu*.
  file(GLOB nccl_wheels
    $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/nccl
    /usr/local/lib/python3*/*-packages/nvidia/nccl /usr/lib/python3*/*-packages/nvidia/nccl)
  find_path(TSR_NCCL_INCLUDE_DIR nccl.h PATH_SUFFIXES include
    HINTS $ENV{NCCL_HOME} ${NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda ${nccl_wheels})
  mark_as_advanced(TSR_NCCL_INCLUDE_DIR)
  if(TSR_NCCL_INCLUDE_DIR)
    set(TSR_HAVE_NCCL ON)
    target_include_directories(tsr_cuda_deps SYSTEM INTERFACE ${TSR_NCCL_INCLUDE_DIR})
    target_compile_definitions(tsr_cuda_deps INTERFACE TSR_WITH_NCCL)
  endif()
  message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, NCCL: ${TSR_HAVE_NCCL}")
else()
  message(STATUS "CUDA: no toolkit; building without GPU devices")
endif()
if(TSR_GPU_TESTS AND NOT TSR_GPU_TESTS STREQUAL "AUTO" AND NOT TSR_HAVE_CUDA)
  message(FATAL_ERROR "TSR_GPU_TESTS=ON, but there is no CUDA toolkit of version 12 or newer (nvcc in PATH or "
                      "/usr/local/cuda). Install one, or leave TSR_GPU_TESTS off.")
endif()
